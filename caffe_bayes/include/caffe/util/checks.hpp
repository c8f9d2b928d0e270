#ifndef CAFFE_UTIL_CHECKS_HPP_
#define CAFFE_UTIL_CHECKS_HPP_

// Checks of numbers that come from outside, from data sets and trained nets.

#include <cmath>
#include <cstdint>
#include <string>

#include "caffe/blob.hpp"
#include "caffe/common.hpp"
#include "caffe/proto/caffe.pb.h"
#include "caffe/util/limits.hpp"

namespace caffe {

/// Refuses a label that is none of the classes 0, 1, ... before it is taken for
/// an index. An image has `places` of them, one unless each pixel has its own.
template <typename Dtype>
inline void CheckLabel(Dtype label, int classes, int image, int place = 0,
                       int places = 1) {
  if (label >= 0 && label < classes) return;
  LOG(FATAL) << "the label of image " << image << " of the batch"
             << (places > 1 ? " at place " + std::to_string(place) : "")
             << " is " << label << ", but must be 0 to " << classes - 1;
}

/// Refuses a record of a data set that does not have as many numbers as its
/// shape says.
inline void CheckDatum(const Datum& datum) {
  if (datum.encoded()) return;
  const int64_t found =
      datum.data().empty() ? datum.float_data_size() : datum.data().size();
  const int expected =
      CheckedCount({datum.channels(), datum.height(), datum.width()});
  LOG_IF(FATAL, found != expected)
      << "has " << found << " numbers, but its shape is " << datum.channels()
      << " x " << datum.height() << " x " << datum.width();
}

/// An index of one of `count` things. Refuses what is none; `place` is where it
/// stands in the bottom.
template <typename Dtype>
inline int CheckedIndex(Dtype index, int count, int place) {
  CHECK(index >= 0 && index < count)
      << "number " << place << " of the bottom is " << index
      << ", but must be an index from 0 to " << count - 1;
  return static_cast<int>(index);
}

/// Whether none of the numbers is NaN or infinite.
template <typename Dtype>
inline bool AllFinite(const Dtype* numbers, size_t count) {
  // In a form that the compiler vectorises: infinity - infinity is NaN.
  bool finite = true;
  for (size_t i = 0; i < count; ++i) finite &= numbers[i] - numbers[i] == 0;
  return finite;
}

/// Refuses NaN and infinity among the numbers of a layer's blob.
template <typename Dtype>
void CheckFinite(const Blob<Dtype>& blob, const std::string& layer,
                 int blob_id) {
  const Dtype* data = blob.cpu_data();
  if (AllFinite(data, blob.count())) return;
  for (int i = 0; i < blob.count(); ++i) {
    if (std::isfinite(data[i])) continue;
    LOG(FATAL) << "blob " << blob_id << " of layer '" << layer << "' has "
               << data[i] << " at index " << i
               << ", but weights must be finite; did the training diverge?";
  }
}

}  // namespace caffe

#endif  // CAFFE_UTIL_CHECKS_HPP_
