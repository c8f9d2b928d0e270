#include "caffe/engine/convolution.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/depthwise.hpp"
#include "caffe/engine/padded_image.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/engine/winograd.hpp"

namespace caffe {
namespace engine {

template <typename T>
void ConvolutionForward(const ConvolutionShape& s, const T* x, const T* w,
                        const T* bias, T* y) {
  if (IsDepthwise(s)) {
    DepthwiseForward(s, x, w, bias, y);
    return;
  }
  if (IsForWinograd(s)) {
    WinogradForward(s, x, w, bias, y);
    return;
  }
  const Kernels<T>& kernels = BestKernels<T>();
  const PaddedImage padded(s);
  const int outputs = s.outputs / s.groups;
  const int pixels = s.output(0) * s.output(1);
  const std::vector<int> offsets = KernelOffsets(s, padded);
  const int depth = offsets.size();
  const Blocks blocks(outputs, kernels.block_rows);
  const int width = kernels.panel_columns;
  const std::vector<Pieces> panels = PixelPanels(s, padded.width, width);
  const int parts = PartsOfEach(s.images * s.groups, panels.size());
  const size_t panel_size = static_cast<size_t>(depth) * width;
  const int at_once = PanelsAtOnce(panel_size * sizeof(T));
  const int image_size = s.channels * s.input[0] * s.input[1];
  ParallelFor(s.images * s.groups * parts, [&](int task) {
    const int part = task % parts, group = task / parts % s.groups;
    const size_t image = task / parts / s.groups;
    const Scratch<T> input(padded.size);
    const Scratch<T> packed(at_once * panel_size);
    PadImage<T>(s, padded,
                x + image * image_size + group * (image_size / s.groups),
                input);
    T* out = y + (image * s.outputs + group * outputs) * pixels;
    const int last = panels.size() * (part + 1) / parts;
    for (int first = panels.size() * part / parts; first < last;
         first += at_once) {
      const int count = std::min(at_once, last - first);
      for (int i = 0; i < count; ++i) {
        const Pieces& pieces = panels[first + i];
        kernels.pack_pieces(input, offsets.data(), depth, pieces.data(),
                            pieces.size(), packed + i * panel_size);
      }
      for (int j = 0; j < blocks.count(); ++j) {
        const ptrdiff_t row = blocks.begin(j);
        const ptrdiff_t weight_row = group * outputs + row;
        Start<T> start;
        if (bias) start.row_bias = bias + weight_row;
        for (int i = 0; i < count; ++i) {
          const int column = (first + i) * width;
          kernels.multiply(blocks.size(j), std::min(width, pixels - column),
                           depth,
                           LeftOperand<T>{w + weight_row * depth, depth, 1},
                           packed + i * panel_size, out + row * pixels + column,
                           pixels, start);
        }
      }
    }
  });
}

template <typename T>
void ConvolutionBiasGradient(const ConvolutionShape& s, const T* dy, T* dbias) {
  const int pixels = s.output(0) * s.output(1);
  ParallelFor(s.outputs, [&](int output) {
    T total = 0;
    for (int image = 0; image < s.images; ++image) {
      const size_t row = static_cast<size_t>(image) * s.outputs + output;
      total += BestKernels<T>().sum(pixels, dy + row * pixels);
    }
    dbias[output] += total;
  });
}

#define INSTANTIATE(T)                                                \
  template void ConvolutionForward(const ConvolutionShape&, const T*, \
                                   const T*, const T*, T*);           \
  template void ConvolutionBiasGradient(const ConvolutionShape&, const T*, T*)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace engine
}  // namespace caffe
