#ifndef CAFFE_UTIL_WINDOW_HPP_
#define CAFFE_UTIL_WINDOW_HPP_

// How many places a window has along one axis of an image. All is computed in
// 64 bits, so that no pad or dilation can overflow, and what does not fit is
// refused by name.

#include <cstdint>

namespace caffe {

/// A window along one of the spatial axes, which are counted from 0.
struct Window {
  int axis;
  int64_t kernel, pad, stride, dilation;
};

/// The length of the output of a convolution whose input has this length.
int ConvolvedSize(int64_t input, const Window& window);

/// The same of a deconvolution.
int DeconvolvedSize(int64_t input, const Window& window);

/// Refuses a pooling window whose output would have no pixel along this axis.
/// The layer itself counts them, and rounds up or down.
void CheckPooling(int64_t input, const Window& window, bool rounds_up);

/// Refuses windows of which the last begins behind the image: it has no mean.
void CheckLastWindow(int64_t input, const Window& window, int windows);

}  // namespace caffe

#endif  // CAFFE_UTIL_WINDOW_HPP_
