#ifndef CAFFE_ENGINE_ROWS_HPP_
#define CAFFE_ENGINE_ROWS_HPP_

#include <algorithm>
#include <cstddef>

#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

/// An array of images x channels x length numbers: a row of `length` numbers
/// for each channel of each image.
struct Rows {
  int images, channels, length;

  int count() const { return images * channels; }
};

/// Calls work(row, channel, count) until it was called for all rows: `count`
/// rows from `row` on, which are the channels from `channel` on of one image.
template <typename Work>
void ParallelRows(const Rows& rows, const Work& work) {
  const ptrdiff_t at_once = std::max(1, kPortion / std::max(1, rows.length));
  const ptrdiff_t all = rows.count();
  ParallelFor((all + at_once - 1) / at_once, [&](int task) {
    const ptrdiff_t last = std::min(all, (task + 1) * at_once);
    for (ptrdiff_t row = task * at_once; row < last;) {
      const int channel = row % rows.channels;
      const int count =
          std::min<ptrdiff_t>(rows.channels - channel, last - row);
      work(row, channel, count);
      row += count;
    }
  });
}

/// to[c] = the sum of of_row over the rows of channel c, in the order of the
/// images; or, with `add`, to[c] += that.
template <typename T>
void SumOverImages(const Rows& rows, const T* of_row, bool add, T* to) {
  ParallelPortions(rows.channels, [&](int, int first, int count) {
    const Scratch<T> sums(count);
    std::fill(sums + 0, sums + count, T(0));
    for (ptrdiff_t image = 0; image < rows.images; ++image) {
      const T* from = of_row + image * rows.channels + first;
      for (int c = 0; c < count; ++c) sums[c] += from[c];
    }
    for (int c = 0; c < count; ++c) {
      to[first + c] = add ? to[first + c] + sums[c] : sums[c];
    }
  });
}

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_ROWS_HPP_
