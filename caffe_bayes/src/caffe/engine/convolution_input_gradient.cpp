#include <algorithm>
#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/depthwise.hpp"
#include "caffe/engine/padded_image.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

namespace {

// Whether the gradient by x is best computed as a convolution of dy with the
// mirrored kernel. It takes no more multiplications where that is about as
// large as x, and none of its results needs to be added up.
bool IsConvolutionBackwards(const ConvolutionShape& s) {
  for (int axis = 0; axis < 2; ++axis) {
    if (s.stride[axis] != 1) return false;
    if (s.pad[axis] > s.dilation[axis] * (s.kernel[axis] - 1)) return false;
  }
  return s.input[0] * s.input[1] * 8 <= s.output(0) * s.output(1) * 9;
}

template <typename T>
void InputGradientByConvolution(const ConvolutionShape& s, const T* dy,
                                const T* w, T* dx) {
  ConvolutionShape back = s;
  std::swap(back.channels, back.outputs);
  for (int axis = 0; axis < 2; ++axis) {
    back.input[axis] = s.output(axis);
    back.pad[axis] = s.dilation[axis] * (s.kernel[axis] - 1) - s.pad[axis];
  }
  const int channels = s.channels / s.groups, outputs = s.outputs / s.groups;
  const int area = s.kernel[0] * s.kernel[1];
  const int depth = outputs * area;
  const Scratch<T> mirrored(static_cast<size_t>(s.channels) * depth);
  for (int group = 0; group < s.groups; ++group) {
    for (int m = 0; m < outputs; ++m) {
      for (int c = 0; c < channels; ++c) {
        const T* kernel = w + ((group * outputs + m) * channels + c) * area;
        std::reverse_copy(
            kernel, kernel + area,
            mirrored + ((group * channels + c) * outputs + m) * area);
      }
    }
  }
  ConvolutionForward<T>(back, dy, mirrored, nullptr, dx);
}

template <typename T>
void InputGradientByAdding(const ConvolutionShape& s, const T* dy, const T* w,
                           T* dx) {
  const Kernels<T>& kernels = BestKernels<T>();
  const PaddedImage padded(s);
  const int outputs = s.outputs / s.groups;
  const int pixels = s.output(0) * s.output(1);
  const std::vector<int> offsets = KernelOffsets(s, padded);
  const int depth = offsets.size();
  const int columns = s.kernel[1], rows = depth / columns;
  // Offsets and weights with the kernel's column outermost. What is added one
  // after the other is then not the same numbers but for a shift, which stalls.
  std::vector<int> by_column(depth);
  const Scratch<T> weights(static_cast<size_t>(s.outputs) * depth);
  for (int i = 0; i < depth; ++i) {
    by_column[i % columns * rows + i / columns] = offsets[i];
  }
  for (int output = 0; output < s.outputs; ++output) {
    for (int i = 0; i < depth; ++i) {
      weights[(i % columns * s.outputs + output) * rows + i / columns] =
          w[output * depth + i];
    }
  }
  const int width = kernels.panel_columns;
  const std::vector<Pieces> panels = PixelPanels(s, padded.width, width);
  const int image_size = s.channels * s.input[0] * s.input[1];
  // A part has some of the channels.
  const int parts = PartsOfEach(s.images * s.groups, padded.channels);
  ParallelFor(s.images * s.groups * parts, [&](int task) {
    const int part = task % parts, group = task / parts % s.groups;
    const size_t image = task / parts / s.groups;
    const int first = padded.channels * part / parts;
    const int last = padded.channels * (part + 1) / parts;
    const Blocks blocks((last - first) * s.kernel[0], kernels.block_rows);
    const T* from = dy + (image * s.outputs + group * outputs) * pixels;
    const Scratch<T> panel(static_cast<size_t>(outputs) * width);
    const Scratch<T> tile(static_cast<size_t>(kernels.block_rows) * width);
    const Scratch<T> sum(padded.size);
    const int plane = padded.height * padded.width;
    std::fill(sum + first * plane, sum + last * plane, T(0));
    for (int i = 0; i < panels.size(); ++i) {
      const int used = std::min(width, pixels - i * width);
      PackPanel<T>({from, pixels, 1}, i * width, used, outputs, panel);
      for (int column = 0; column < columns; ++column) {
        for (int j = 0; j < blocks.count(); ++j) {
          const int row = first * s.kernel[0] + blocks.begin(j);
          const T* left = weights + row +
                          (column * s.outputs + group * outputs) *
                              static_cast<ptrdiff_t>(rows);
          kernels.multiply(blocks.size(j), used, outputs,
                           LeftOperand<T>{left, 1, rows}, panel, tile, width,
                           Start<T>());
          kernels.add_pieces(tile, by_column.data() + column * rows + row,
                             blocks.size(j), panels[i].data(), panels[i].size(),
                             sum);
        }
      }
    }
    T* out = dx + image * image_size + group * (image_size / s.groups);
    for (int c = first; c < last; ++c) {
      kernels.copy(s.input[0], s.input[1],
                   sum + c * plane + s.pad[0] * padded.width + s.pad[1],
                   padded.width, out + c * s.input[0] * s.input[1], s.input[1]);
    }
  });
}

}  // namespace

template <typename T>
void ConvolutionInputGradient(const ConvolutionShape& s, const T* dy,
                              const T* w, T* dx) {
  if (IsDepthwise(s)) {
    DepthwiseInputGradient(s, dy, w, dx);
  } else if (IsConvolutionBackwards(s)) {
    InputGradientByConvolution(s, dy, w, dx);
  } else {
    InputGradientByAdding(s, dy, w, dx);
  }
}

template void ConvolutionInputGradient(const ConvolutionShape&, const float*,
                                       const float*, float*);
template void ConvolutionInputGradient(const ConvolutionShape&, const double*,
                                       const double*, double*);

}  // namespace engine
}  // namespace caffe
