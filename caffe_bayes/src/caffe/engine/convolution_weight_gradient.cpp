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

// How the work is divided, and where it reads and writes. The rows of the
// product are outputs, its depth is the pixels of a few images, and its columns
// are the weights of a kernel in the order (row, column, channel).
struct WeightGradient {
  WeightGradient(const ConvolutionShape& shape, int block_rows,
                 int panel_columns)
      : s(shape),
        padded(s),
        outputs(s.outputs / s.groups),
        depth(padded.channels * s.kernel[0] * s.kernel[1]),
        pixels(s.output(0) * s.output(1)),
        width(panel_columns),
        blocks(outputs, block_rows),
        panels(KernelPanels(s, padded, width)),
        pixel_offsets(pixels) {
    for (int i = 0; i < pixels; ++i) {
      const int row = i / s.output(1) * s.stride[0];
      const int column = i % s.output(1) * s.stride[1];
      pixel_offsets[i] = (row * padded.width + column) * padded.channels;
    }
    // Partial sums over some of the images each, which are added in order. How
    // many there are depends on the shape alone, so the bits of the result do
    // not depend on the number of threads.
    const size_t kMostNumbers = 1 << 20;
    sums = std::max<size_t>(
        1, std::min<size_t>(std::min(s.images, 16), kMostNumbers / weights()));
    // As many images of a sum at once as make a product of this depth, so that
    // sums are rarely written to memory and read again.
    const int kDepth = 512;
    at_once = std::max(1, std::min(kDepth / pixels, s.images / sums));
  }
  size_t weights() const { return static_cast<size_t>(s.outputs) * depth; }

  const ConvolutionShape s;
  const PaddedImage padded;
  const int outputs, depth, pixels, width;
  const Blocks blocks;
  const std::vector<Pieces> panels;
  std::vector<int> pixel_offsets;
  int sums, at_once;
};

// Adds the gradients of `count` images from `first` on, of one group, to
// `total`, in the panels [first_panel, last_panel) of its columns. Writes over
// what is there if `start.add` is false.
template <typename T>
void AddImages(const WeightGradient& g, const T* x, const T* dy, int first,
               int count, int group, int first_panel, int last_panel,
               const Start<T>& start, T* total) {
  const Kernels<T>& kernels = BestKernels<T>();
  const ConvolutionShape& s = g.s;
  const Scratch<T> inputs(static_cast<size_t>(count) * g.padded.size);
  const Scratch<T> panel(static_cast<size_t>(count) * g.pixels * g.width);
  const size_t input_size =
      static_cast<size_t>(g.padded.channels) * s.input[0] * s.input[1];
  for (int i = 0; i < count; ++i) {
    const size_t which = static_cast<size_t>(first + i) * s.groups + group;
    PadInterleaved(s, g.padded, x + which * input_size,
                   inputs + i * g.padded.size);
  }
  const T* left = dy + (static_cast<size_t>(first) * s.groups + group) *
                           g.outputs * g.pixels;
  for (int p = first_panel; p < last_panel; ++p) {
    const int column = p * g.width;
    for (int i = 0; i < count; ++i) {
      kernels.pack_pieces(inputs + i * g.padded.size, g.pixel_offsets.data(),
                          g.pixels, g.panels[p].data(), g.panels[p].size(),
                          panel + static_cast<size_t>(i) * g.pixels * g.width);
    }
    for (int j = 0; j < g.blocks.count(); ++j) {
      const ptrdiff_t row = g.blocks.begin(j);
      kernels.multiply(
          g.blocks.size(j), std::min(g.width, g.depth - column),
          count * g.pixels,
          LeftOperand<T>{left + row * g.pixels, g.pixels, 1, g.pixels,
                         static_cast<ptrdiff_t>(s.outputs) * g.pixels},
          panel, total + (group * g.outputs + row) * g.depth + column, g.depth,
          start);
    }
  }
}

}  // namespace

template <typename T>
void ConvolutionWeightGradient(const ConvolutionShape& s, const T* x,
                               const T* dy, T* dw) {
  if (IsDepthwise(s)) {
    DepthwiseWeightGradient(s, x, dy, dw);
    return;
  }
  const Kernels<T>& kernels = BestKernels<T>();
  const WeightGradient g(s, kernels.block_rows, kernels.panel_columns);
  const Scratch<T> sums(g.sums * g.weights());
  // Each sum is divided further by panels.
  const int panels = g.panels.size();
  const int parts = PartsOfEach(g.sums, panels);
  ParallelFor(g.sums * parts, [&](int task) {
    const int part = task % parts, sum = task / parts;
    const int first_image = s.images * sum / g.sums;
    const int last_image = s.images * (sum + 1) / g.sums;
    for (int first = first_image; first < last_image; first += g.at_once) {
      Start<T> start;
      start.add = first > first_image;
      for (int group = 0; group < s.groups; ++group) {
        AddImages(g, x, dy, first, std::min(g.at_once, last_image - first),
                  group, panels * part / parts, panels * (part + 1) / parts,
                  start, sums + sum * g.weights());
      }
    }
  });
  // Back from (row, column, channel) to Caffe's (channel, row, column).
  const int channels = g.padded.channels, area = s.kernel[0] * s.kernel[1];
  ParallelFor(s.outputs, [&](int output) {
    const ptrdiff_t row = static_cast<ptrdiff_t>(output) * g.depth;
    T* total = sums + row;
    for (int sum = 1; sum < g.sums; ++sum) {
      const T* from = sums + sum * g.weights() + row;
      for (int i = 0; i < g.depth; ++i) total[i] += from[i];
    }
    T* out = dw + row;
    for (int c = 0; c < channels; ++c) {
      for (int i = 0; i < area; ++i) {
        out[c * area + i] += total[i * channels + c];
      }
    }
  });
}

template void ConvolutionWeightGradient(const ConvolutionShape&, const float*,
                                        const float*, float*);
template void ConvolutionWeightGradient(const ConvolutionShape&, const double*,
                                        const double*, double*);

}  // namespace engine
}  // namespace caffe
