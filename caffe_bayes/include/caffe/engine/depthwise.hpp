#ifndef CAFFE_ENGINE_DEPTHWISE_HPP_
#define CAFFE_ENGINE_DEPTHWISE_HPP_

#include "caffe/engine/convolution.hpp"

namespace caffe {
namespace engine {

// Convolution of each channel by itself: as many groups as channels and as
// outputs. There are few multiplications for each number, so that packing
// panels would take longer than they do.

bool IsDepthwise(const ConvolutionShape& shape);

// What the functions in convolution.hpp do, for such shapes.
template <typename T>
void DepthwiseForward(const ConvolutionShape& shape, const T* x, const T* w,
                      const T* bias, T* y);
template <typename T>
void DepthwiseInputGradient(const ConvolutionShape& shape, const T* dy,
                            const T* w, T* dx);
template <typename T>
void DepthwiseWeightGradient(const ConvolutionShape& shape, const T* x,
                             const T* dy, T* dw);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_DEPTHWISE_HPP_
