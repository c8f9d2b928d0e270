#ifndef CAFFE_ENGINE_WINOGRAD_HPP_
#define CAFFE_ENGINE_WINOGRAD_HPP_

#include "caffe/engine/convolution.hpp"

namespace caffe {
namespace engine {

// Winograd's way to convolve with kernels of 3 x 3, F(2 x 2, 3 x 3): the output
// in tiles of 2 x 2 pixels, each from the 4 x 4 pixels under it, with 16
// multiplications in place of 36. Pixels and kernels are transformed to 4 x 4
// numbers each, these are multiplied and summed over the channels as 16
// separate matrix products, and the sums transformed back.

/// Whether that is right for a shape, and faster.
bool IsForWinograd(const ConvolutionShape& shape);

/// y = x * w + bias, as ConvolutionForward.
template <typename T>
void WinogradForward(const ConvolutionShape& shape, const T* x, const T* w,
                     const T* bias, T* y);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_WINOGRAD_HPP_
