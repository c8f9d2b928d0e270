#ifndef CAFFE_BAYES_KEPT_STREAM_HPP_
#define CAFFE_BAYES_KEPT_STREAM_HPP_

#include "caffe/util/rng.hpp"

namespace caffe {
namespace bayes {

/// Puts this thread's random numbers back to where they were when it was made,
/// so that a net made in between leaves no trace in them.
class KeptStream {
 public:
  KeptStream() : stream_(*caffe_rng()) {}
  ~KeptStream() { *caffe_rng() = stream_; }
  KeptStream(const KeptStream&) = delete;

 private:
  const rng_t stream_;
};

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_KEPT_STREAM_HPP_
