#include "caffe/engine/convolution.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/product.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/engine/winograd.hpp"

namespace caffe {
namespace engine {

namespace {

// One group of one image, with its padding around it: all that a convolution
// reads can then be read without a question.
struct Padded {
  explicit Padded(const ConvolutionShape& s)
      : channels(s.channels / s.groups),
        height(s.input[0] + 2 * s.pad[0]),
        width(s.input[1] + 2 * s.pad[1]),
        size(channels * height * width) {}
  int channels, height, width, size;
};

// Pieces of the padded image that make up the columns of a panel.
typedef std::vector<Piece> Runs;

// Calls runs_of(first, count) for the columns of each panel.
template <typename RunsOf>
std::vector<Runs> RunsOfPanels(int columns, int width, const RunsOf& runs_of) {
  std::vector<Runs> panels;
  for (int first = 0; first < columns; first += width) {
    panels.push_back(runs_of(first, std::min(width, columns - first)));
  }
  return panels;
}

// The output's pixels [first, first + count) as runs along the rows.
Runs RunsOfPixels(const ConvolutionShape& s, int width, int first, int count) {
  Runs runs;
  const int row_length = s.output(1);
  int at = 0;
  while (at < count) {
    const int y = (first + at) / row_length, x = (first + at) % row_length;
    const int length = std::min(count - at, row_length - x);
    runs.push_back(
        {y * s.stride[0] * width + x * s.stride[1], at, length, s.stride[1]});
    at += length;
  }
  return runs;
}

// The runs of all pixels of the output, panel by panel.
std::vector<Runs> PixelPanels(const ConvolutionShape& s, int image_width,
                              int width) {
  return RunsOfPanels(s.output(0) * s.output(1), width,
                      [&](int first, int count) {
                        return RunsOfPixels(s, image_width, first, count);
                      });
}

// Where the weight (channel, row, column) of a kernel at the output's first
// pixel looks in the padded image.
std::vector<int> KernelOffsets(const ConvolutionShape& s, const Padded& p) {
  std::vector<int> offsets;
  for (int c = 0; c < p.channels; ++c) {
    for (int h = 0; h < s.kernel[0]; ++h) {
      for (int w = 0; w < s.kernel[1]; ++w) {
        offsets.push_back((c * p.height + h * s.dilation[0]) * p.width +
                          w * s.dilation[1]);
      }
    }
  }
  return offsets;
}

// Puts an image into the middle of a padded one, whose border is 0.
template <typename T>
void Pad(const ConvolutionShape& s, const Padded& p, const T* image,
         T* padded) {
  if (!s.pad[0] && !s.pad[1]) {
    std::copy(image, image + p.size, padded);
    return;
  }
  std::fill(padded, padded + p.size, T(0));
  for (int c = 0; c < p.channels; ++c) {
    BestKernels<T>().copy(
        s.input[0], s.input[1], image + c * s.input[0] * s.input[1], s.input[1],
        padded + (c * p.height + s.pad[0]) * p.width + s.pad[1], p.width);
  }
}

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
  T* mirrored = Scratch<T, 2>(static_cast<size_t>(s.channels) * depth);
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
  const Padded padded(s);
  const int outputs = s.outputs / s.groups;
  const int pixels = s.output(0) * s.output(1);
  const std::vector<int> offsets = KernelOffsets(s, padded);
  const int depth = offsets.size();
  const int columns = s.kernel[1], rows = depth / columns;
  // Offsets and weights with the kernel's column outermost. What is added one
  // after the other is then not the same numbers but for a shift, which stalls.
  std::vector<int> by_column(depth);
  T* weights = Scratch<T, 3>(static_cast<size_t>(s.outputs) * depth);
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
  const std::vector<Runs> panels = PixelPanels(s, padded.width, width);
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
    T* panel = Scratch<T, 0>(static_cast<size_t>(outputs) * width);
    T* tile = Scratch<T, 1>(static_cast<size_t>(kernels.block_rows) * width);
    T* sum = Scratch<T, 2>(padded.size);
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
                           Left<T>{left, 1, rows}, panel, tile, width,
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

// The same as Pad with the channels innermost.
template <typename T>
void PadInterleaved(const ConvolutionShape& s, const Padded& p, const T* image,
                    T* padded) {
  if (s.pad[0] || s.pad[1]) std::fill(padded, padded + p.size, T(0));
  for (int row = 0; row < s.input[0]; ++row) {
    BestKernels<T>().transpose(
        p.channels, s.input[1], image + row * s.input[1],
        s.input[0] * s.input[1],
        padded + ((row + s.pad[0]) * p.width + s.pad[1]) * p.channels,
        p.channels);
  }
}

// The kernel's weights in the order (row, column, channel), as runs of the
// padded image with its channels innermost: those of [first, first + count).
Runs RunsOfKernel(const ConvolutionShape& s, const Padded& p, int first,
                  int count) {
  Runs runs;
  const bool rows_run = s.dilation[1] == 1;
  const int run = rows_run ? s.kernel[1] * p.channels : p.channels;
  int at = 0;
  while (at < count) {
    const int which = (first + at) / run, within = (first + at) % run;
    const int h = rows_run ? which : which / s.kernel[1];
    const int w = rows_run ? 0 : which % s.kernel[1];
    const int length = std::min(count - at, run - within);
    runs.push_back(
        {(h * s.dilation[0] * p.width + w * s.dilation[1]) * p.channels +
             within,
         at, length, 1});
    at += length;
  }
  return runs;
}

}  // namespace

template <typename T>
void ConvolutionForward(const ConvolutionShape& s, const T* x, const T* w,
                        const T* bias, T* y) {
  if (IsForWinograd(s)) {
    WinogradForward(s, x, w, bias, y);
    return;
  }
  const Kernels<T>& kernels = BestKernels<T>();
  const Padded padded(s);
  const int outputs = s.outputs / s.groups;
  const int pixels = s.output(0) * s.output(1);
  const std::vector<int> offsets = KernelOffsets(s, padded);
  const int depth = offsets.size();
  const Blocks blocks(outputs, kernels.block_rows);
  const int width = kernels.panel_columns;
  const std::vector<Runs> panels = PixelPanels(s, padded.width, width);
  const int parts = PartsOfEach(s.images * s.groups, panels.size());
  const size_t panel_size = static_cast<size_t>(depth) * width;
  const int at_once = PanelsAtOnce(panel_size * sizeof(T));
  const int image_size = s.channels * s.input[0] * s.input[1];
  ParallelFor(s.images * s.groups * parts, [&](int task) {
    const int part = task % parts, group = task / parts % s.groups;
    const size_t image = task / parts / s.groups;
    T* input = Scratch<T, 0>(padded.size);
    T* packed = Scratch<T, 1>(at_once * panel_size);
    Pad(s, padded, x + image * image_size + group * (image_size / s.groups),
        input);
    T* out = y + (image * s.outputs + group * outputs) * pixels;
    const int last = panels.size() * (part + 1) / parts;
    for (int first = panels.size() * part / parts; first < last;
         first += at_once) {
      const int count = std::min(at_once, last - first);
      for (int i = 0; i < count; ++i) {
        const Runs& runs = panels[first + i];
        kernels.pack_pieces(input, offsets.data(), depth, runs.data(),
                            runs.size(), packed + i * panel_size);
      }
      for (int j = 0; j < blocks.count(); ++j) {
        const ptrdiff_t row = blocks.begin(j);
        const ptrdiff_t weight_row = group * outputs + row;
        Start<T> start;
        if (bias) start.row_bias = bias + weight_row;
        for (int i = 0; i < count; ++i) {
          const int column = (first + i) * width;
          kernels.multiply(blocks.size(j), std::min(width, pixels - column),
                           depth, Left<T>{w + weight_row * depth, depth, 1},
                           packed + i * panel_size, out + row * pixels + column,
                           pixels, start);
        }
      }
    }
  });
}

template <typename T>
void ConvolutionInputGradient(const ConvolutionShape& s, const T* dy,
                              const T* w, T* dx) {
  if (IsConvolutionBackwards(s)) {
    InputGradientByConvolution(s, dy, w, dx);
  } else {
    InputGradientByAdding(s, dy, w, dx);
  }
}

template <typename T>
void ConvolutionWeightGradient(const ConvolutionShape& s, const T* x,
                               const T* dy, T* dw) {
  const Kernels<T>& kernels = BestKernels<T>();
  const Padded padded(s);
  const int channels = padded.channels, outputs = s.outputs / s.groups;
  const int area = s.kernel[0] * s.kernel[1];
  const int depth = channels * area;
  const int pixels = s.output(0) * s.output(1);
  const int input_area = s.input[0] * s.input[1];
  const Blocks blocks(outputs, kernels.block_rows);
  const int width = kernels.panel_columns;
  const std::vector<Runs> panels =
      RunsOfPanels(depth, width, [&](int first, int count) {
        return RunsOfKernel(s, padded, first, count);
      });
  const size_t weights = static_cast<size_t>(s.outputs) * depth;

  std::vector<int> pixel_offsets(pixels);
  for (int i = 0; i < pixels; ++i) {
    const int row = i / s.output(1) * s.stride[0];
    const int column = i % s.output(1) * s.stride[1];
    pixel_offsets[i] = (row * padded.width + column) * channels;
  }

  // Sums over a few images each, added up in their order: how many of them
  // depends on the shape alone, so the bits do not depend on the threads.
  const size_t kSumsNumbers = 1 << 20;
  const int sums = std::max<size_t>(
      1, std::min<size_t>(std::min(s.images, 16), kSumsNumbers / weights));
  // Each is divided further by panels of the kernels' columns.
  const int parts = PartsOfEach(sums, panels.size());
  T* partial = Scratch<T, 0>(sums * weights);
  // So many images of one sum at once that few sums go to memory and back.
  const int kDepth = 512;
  const int at_once = std::max(1, std::min(kDepth / pixels, s.images / sums));
  ParallelFor(sums * parts, [&](int task) {
    const int part = task % parts, sum = task / parts;
    T* total = partial + sum * weights;
    const int first_image = s.images * sum / sums;
    const int last_image = s.images * (sum + 1) / sums;
    T* inputs = Scratch<T, 1>(static_cast<size_t>(at_once) * padded.size);
    T* panel = Scratch<T, 2>(static_cast<size_t>(at_once) * pixels * width);
    for (int first = first_image; first < last_image; first += at_once) {
      const int count = std::min(at_once, last_image - first);
      for (int group = 0; group < s.groups; ++group) {
        for (int i = 0; i < count; ++i) {
          const size_t which =
              static_cast<size_t>(first + i) * s.groups + group;
          PadInterleaved(s, padded, x + which * channels * input_area,
                         inputs + i * padded.size);
        }
        const T* left = dy + (static_cast<size_t>(first) * s.groups + group) *
                                 outputs * pixels;
        Start<T> start;
        start.add = first > first_image;
        const int last_panel = panels.size() * (part + 1) / parts;
        for (int p = panels.size() * part / parts; p < last_panel; ++p) {
          const int column = p * width;
          for (int i = 0; i < count; ++i) {
            kernels.pack_pieces(
                inputs + i * padded.size, pixel_offsets.data(), pixels,
                panels[p].data(), panels[p].size(),
                panel + static_cast<size_t>(i) * pixels * width);
          }
          for (int j = 0; j < blocks.count(); ++j) {
            const ptrdiff_t row = blocks.begin(j);
            kernels.multiply(
                blocks.size(j), std::min(width, depth - column), count * pixels,
                Left<T>{left + row * pixels, pixels, 1, pixels,
                        static_cast<ptrdiff_t>(s.outputs) * pixels},
                panel, total + (group * outputs + row) * depth + column, depth,
                start);
          }
        }
      }
    }
  });
  // Back from (row, column, channel) to Caffe's (channel, row, column).
  ParallelFor(s.outputs, [&](int output) {
    const ptrdiff_t row = static_cast<ptrdiff_t>(output) * depth;
    T* total = partial + row;
    for (int sum = 1; sum < sums; ++sum) {
      const T* from = partial + sum * weights + row;
      for (int i = 0; i < depth; ++i) total[i] += from[i];
    }
    T* out = dw + row;
    for (int c = 0; c < channels; ++c) {
      for (int i = 0; i < area; ++i) {
        out[c * area + i] += total[i * channels + c];
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

#define INSTANTIATE(T)                                                       \
  template void ConvolutionForward(const ConvolutionShape&, const T*,        \
                                   const T*, const T*, T*);                  \
  template void ConvolutionInputGradient(const ConvolutionShape&, const T*,  \
                                         const T*, T*);                      \
  template void ConvolutionWeightGradient(const ConvolutionShape&, const T*, \
                                          const T*, T*);                     \
  template void ConvolutionBiasGradient(const ConvolutionShape&, const T*, T*)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace engine
}  // namespace caffe
