#include "caffe/util/window.hpp"

#include <climits>

#include "caffe/common.hpp"

namespace caffe {

namespace {

void CheckWindow(int64_t input, const Window& window) {
  CHECK_GE(input, 1) << "the image has no pixels along spatial axis "
                     << window.axis;
  CHECK_GE(window.kernel, 1) << "kernel_size must be 1 or more";
  CHECK_GE(window.stride, 1)
      << "stride along spatial axis " << window.axis
      << " must be 1 or more; stride_h and stride_w are given together";
  CHECK_GE(window.dilation, 1) << "dilation must be 1 or more";
  CHECK_GE(window.pad, 0) << "pad must be 0 or more";
}

int64_t Extent(const Window& window) {
  return window.dilation * (window.kernel - 1) + 1;
}

}  // namespace

int ConvolvedSize(int64_t input, const Window& window) {
  CheckWindow(input, window);
  const int64_t padded = input + 2 * window.pad;
  CHECK_LE(padded, INT_MAX)
      << "pad is " << window.pad << ", which makes the image too large";
  CHECK_LE(Extent(window), padded)
      << "the kernel is larger than the image along spatial axis "
      << window.axis << ": kernel_size is " << window.kernel
      << ", with dilation " << window.dilation << " it covers "
      << Extent(window) << " pixels, but must cover at most the " << padded
      << " that there are (" << input << " and 2 times a pad of " << window.pad
      << ")";
  return (padded - Extent(window)) / window.stride + 1;
}

int DeconvolvedSize(int64_t input, const Window& window) {
  CheckWindow(input, window);
  const int64_t size =
      window.stride * (input - 1) + Extent(window) - 2 * window.pad;
  CHECK(size >= 1 && size <= INT_MAX)
      << "the output would have " << size << " pixels along spatial axis "
      << window.axis << " (kernel_size " << window.kernel << ", stride "
      << window.stride << ", dilation " << window.dilation << ", pad "
      << window.pad << "), but must have 1 to " << INT_MAX;
  return size;
}

void CheckPooling(int64_t input, const Window& window, bool rounds_up) {
  CheckWindow(input, window);
  const int64_t padded = input + 2 * window.pad;
  CHECK_LE(padded + window.stride, INT_MAX)
      << "pad is " << window.pad << ", which makes the image too large";
  // Rounded up, a window that begins in the image counts, though it ends
  // outside.
  const int64_t most = padded + (rounds_up ? window.stride - 1 : 0);
  CHECK_LE(window.kernel, most)
      << "the kernel is larger than the image along spatial axis "
      << window.axis << ": kernel_size is " << window.kernel
      << ", but must be at most " << most << ", as there are " << input
      << " pixels, a pad of " << window.pad << " and a stride of "
      << window.stride;
}

void CheckLastWindow(int64_t input, const Window& window, int windows) {
  CHECK_LT((windows - 1) * window.stride, input + window.pad)
      << "the last window along spatial axis " << window.axis
      << " lies behind the image and has no mean: kernel_size is "
      << window.kernel << ", stride is " << window.stride << ", and there are "
      << input << " pixels; set round_mode: FLOOR";
}

}  // namespace caffe
