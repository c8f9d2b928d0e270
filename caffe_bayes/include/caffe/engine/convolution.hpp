#ifndef CAFFE_ENGINE_CONVOLUTION_HPP_
#define CAFFE_ENGINE_CONVOLUTION_HPP_

namespace caffe {
namespace engine {

/// A convolution in two dimensions. Index 0 is vertical, 1 horizontal.
struct ConvolutionShape {
  int images;
  int channels;  // of the input, all groups together
  int outputs;   // channels of the output, all groups together
  int groups;
  int input[2];
  int kernel[2];
  int stride[2];
  int pad[2];
  int dilation[2];

  int output(int axis) const {
    const int extent = dilation[axis] * (kernel[axis] - 1) + 1;
    return (input[axis] + 2 * pad[axis] - extent) / stride[axis] + 1;
  }
};

// Blobs are laid out as Caffe's: images x channels x height x width, weights
// outputs x channels / groups x height x width.

/// y = x * w + bias; bias may be null.
template <typename T>
void ConvolutionForward(const ConvolutionShape& shape, const T* x, const T* w,
                        const T* bias, T* y);

/// dx = the gradient by x.
template <typename T>
void ConvolutionInputGradient(const ConvolutionShape& shape, const T* dy,
                              const T* w, T* dx);

/// dw += the gradient by w.
template <typename T>
void ConvolutionWeightGradient(const ConvolutionShape& shape, const T* x,
                               const T* dy, T* dw);

/// dbias += the gradient by bias.
template <typename T>
void ConvolutionBiasGradient(const ConvolutionShape& shape, const T* dy,
                             T* dbias);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_CONVOLUTION_HPP_
