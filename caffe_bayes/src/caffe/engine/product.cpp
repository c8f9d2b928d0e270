#include "caffe/engine/product.hpp"

#include <cstdint>

#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

namespace {

// Some more than there are threads, so that all finish at about the same time.
int TasksWanted() { return TeamSize() > 1 ? 2 * TeamSize() : 1; }

// With fewer, multiply_vector gains nothing. It needs 4.
const int kLeastVectorRows = 8;

}  // namespace

int PartsOfEach(int n, int most) {
  return std::max(1, std::min(most, (TasksWanted() + n - 1) / std::max(1, n)));
}

int PanelsAtOnce(size_t panel_bytes) {
  const size_t kCachedBytes = 1 << 20, kMost = 8;
  return std::max<size_t>(1, std::min(kMost, kCachedBytes / panel_bytes));
}

template <typename T>
void PackPanel(const Matrix<T>& b, int column, int columns, int depth,
               T* panel) {
  const Kernels<T>& kernels = BestKernels<T>();
  const T* from = b.data + column * b.column;
  if (b.column == 1) {
    kernels.copy(depth, columns, from, b.row, panel, kernels.panel_columns);
  } else {
    kernels.transpose(columns, depth, from, b.column, panel,
                      kernels.panel_columns);
  }
}

// The product of a matrix and a vector, whose time is that of reading the
// matrix.
template <typename T>
void MultiplyVector(int rows, int depth, const Matrix<T>& a, const T* x,
                    const T* bias, T* y) {
  const int parts = std::min(TasksWanted(), rows / kLeastVectorRows);
  ParallelFor(parts, [&](int part) {
    const ptrdiff_t row = static_cast<int64_t>(rows) * part / parts;
    const ptrdiff_t end = static_cast<int64_t>(rows) * (part + 1) / parts;
    BestKernels<T>().multiply_vector(end - row, depth, a.data + row * a.row,
                                     a.row, x, bias ? bias + row : nullptr,
                                     y + row);
  });
}

template <typename T>
void Multiply(int rows, int columns, int depth, const Matrix<T>& a,
              const Matrix<T>& b, T* c, ptrdiff_t c_row, bool transpose,
              const Start<T>& start) {
  const Kernels<T>& kernels = BestKernels<T>();
  // c is a vector without gaps, too.
  const bool is_vector = columns == 1 && b.row == 1 && a.column == 1 &&
                         (transpose || c_row == 1) && !start.add;
  if (is_vector && rows >= kLeastVectorRows) {
    MultiplyVector(rows, depth, a, b.data, start.row_bias, c);
    return;
  }
  const Blocks blocks(rows, kernels.block_rows);
  const int width = kernels.panel_columns;
  const int panels = (columns + width - 1) / width;
  const size_t panel_size = static_cast<size_t>(depth) * width;
  const size_t panel_bytes = std::max<size_t>(1, panel_size * sizeof(T));
  // Each block of a is multiplied with a group of panels while it is in the
  // cache, and writes to longer pieces of c's rows: many panels if short.
  const size_t kShortPanelsBytes = 1 << 18;
  const int at_once = std::min(
      std::max<int>(PanelsAtOnce(panel_bytes), kShortPanelsBytes / panel_bytes),
      std::max(1, panels / TasksWanted()));
  const int groups = (panels + at_once - 1) / at_once;
  const int parts = PartsOfEach(groups, blocks.count());
  ParallelFor(groups * parts, [&](int task) {
    const int first = task / parts * at_once, part = task % parts;
    const int count = std::min(at_once, panels - first);
    const auto used = [&](int p) {
      return std::min(width, columns - (first + p) * width);
    };
    const Scratch<T> packed(count * panel_size);
    // A few rows at a time, which are then read along and not across.
    const int kRows = 16;
    for (int k = 0; k < depth; k += kRows) {
      const Matrix<T> rows = {b.data + k * b.row, b.row, b.column};
      for (int p = 0; p < count; ++p) {
        PackPanel<T>(rows, (first + p) * width, used(p),
                     std::min(kRows, depth - k),
                     packed + p * panel_size + k * width);
      }
    }
    const Scratch<T> tile(static_cast<size_t>(kernels.block_rows) * width);
    const Scratch<T> block(static_cast<size_t>(kernels.block_rows) * depth);
    for (int j = blocks.count() * part / parts;
         j < blocks.count() * (part + 1) / parts; ++j) {
      const int row = blocks.begin(j), size = blocks.size(j);
      LeftOperand<T> left = {a.data + row * a.row, a.row, a.column};
      const int kPanelsWorthACopy = 8;
      if (a.row == 1 && count >= kPanelsWorthACopy) {
        // Its columns are far from each other, and if their distance is a power
        // of 2, they compete for a few places in the cache.
        kernels.copy(depth, size, left.data, a.column, block, size);
        left = {block, 1, size};
      }
      Start<T> here = start;
      if (here.row_bias) here.row_bias += row;
      for (int p = 0; p < count; ++p) {
        const ptrdiff_t column = (first + p) * width;
        kernels.multiply(size, used(p), depth, left, packed + p * panel_size,
                         transpose ? tile : c + row * c_row + column,
                         transpose ? width : c_row, here);
        if (transpose) {
          kernels.transpose(size, used(p), tile, width,
                            c + column * c_row + row, c_row);
        }
      }
    }
  });
}

#define INSTANTIATE(T)                                                      \
  template void PackPanel(const Matrix<T>&, int, int, int, T*);             \
  template void Multiply(int, int, int, const Matrix<T>&, const Matrix<T>&, \
                         T*, ptrdiff_t, bool, const Start<T>&)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace engine
}  // namespace caffe
