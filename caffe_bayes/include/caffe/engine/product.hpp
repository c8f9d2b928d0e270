#ifndef CAFFE_ENGINE_PRODUCT_HPP_
#define CAFFE_ENGINE_PRODUCT_HPP_

#include <algorithm>
#include <cstddef>

#include "caffe/engine/kernels.hpp"

namespace caffe {
namespace engine {

/// A matrix in memory: element (r, c) is data[r * row + c * column], where row
/// or column is 1.
template <typename T>
struct Matrix {
  const T* data;
  ptrdiff_t row, column;
};

/// How `rows` rows are divided into blocks, as evenly as can be.
class Blocks {
 public:
  Blocks(int rows, int most)
      : rows_(rows),
        count_((rows + most - 1) / most),
        size_(count_ ? (rows + count_ - 1) / count_ : 0) {}
  int count() const { return count_; }
  int begin(int block) const { return std::min(rows_, block * size_); }
  int size(int block) const { return begin(block + 1) - begin(block); }

 private:
  int rows_, count_, size_;
};

/// In how many parts to divide each of n pieces of work so that all threads
/// have some; what the parts compute must not depend on it.
int PartsOfEach(int n, int most);

/// How many panels of so many bytes to go through with each block of the left
/// operand: enough that it is not read anew for each, and so few that they stay
/// in the cache.
int PanelsAtOnce(size_t panel_bytes);

/// Packs the columns [column, column + columns) of a matrix with `depth` rows.
template <typename T>
void PackPanel(const Matrix<T>& b, int column, int columns, int depth,
               T* panel);

/**
 * @brief c = start + a b, where a is rows x depth and b is depth x columns.
 *
 * @param c_row     where c's next row is
 * @param transpose whether c's element (i, j) is c[j * c_row + i] and not
 *                  c[i * c_row + j]; start.add must then be false
 */
template <typename T>
void Multiply(int rows, int columns, int depth, const Matrix<T>& a,
              const Matrix<T>& b, T* c, ptrdiff_t c_row, bool transpose,
              const Start<T>& start);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_PRODUCT_HPP_
