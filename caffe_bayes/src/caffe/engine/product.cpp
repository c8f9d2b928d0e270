#include "caffe/engine/product.hpp"

#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

int PartsOfEach(int n, int most) {
  const int wanted = TeamSize() > 1 ? 2 * TeamSize() : 1;
  return std::max(1, std::min(most, (wanted + n - 1) / std::max(1, n)));
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

template <typename T>
void Multiply(int rows, int columns, int depth, const Matrix<T>& a,
              const Matrix<T>& b, T* c, ptrdiff_t c_row, bool transpose,
              const Start<T>& start) {
  const Kernels<T>& kernels = BestKernels<T>();
  const Blocks blocks(rows, kernels.block_rows);
  const int width = kernels.panel_columns;
  const int panels = (columns + width - 1) / width;
  const int parts = PartsOfEach(panels, blocks.count());
  ParallelFor(panels * parts, [&](int task) {
    const int column = task / parts * width, part = task % parts;
    const int used = std::min(width, columns - column);
    const Scratch<T> panel(static_cast<size_t>(depth) * width);
    PackPanel<T>(b, column, used, depth, panel);
    const Scratch<T> tile(static_cast<size_t>(kernels.block_rows) * width);
    for (int block = blocks.count() * part / parts;
         block < blocks.count() * (part + 1) / parts; ++block) {
      const int row = blocks.begin(block), size = blocks.size(block);
      Start<T> here = start;
      if (here.row_bias) here.row_bias += row;
      kernels.multiply(size, used, depth,
                       LeftOperand<T>{a.data + row * a.row, a.row, a.column},
                       panel, transpose ? tile : c + row * c_row + column,
                       transpose ? width : c_row, here);
      if (transpose) {
        kernels.transpose(size, used, tile, width, c + column * c_row + row,
                          c_row);
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
