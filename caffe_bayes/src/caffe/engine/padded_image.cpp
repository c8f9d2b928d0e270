#include "caffe/engine/padded_image.hpp"

#include <algorithm>

namespace caffe {
namespace engine {

namespace {

// Calls pieces_of(first, count) for the columns of each panel.
template <typename PiecesOf>
std::vector<Pieces> PiecesOfPanels(int columns, int panel_columns,
                                   const PiecesOf& pieces_of) {
  std::vector<Pieces> panels;
  for (int first = 0; first < columns; first += panel_columns) {
    panels.push_back(
        pieces_of(first, std::min(panel_columns, columns - first)));
  }
  return panels;
}

// The output's pixels [first, first + count), row by row.
Pieces PiecesOfPixels(const ConvolutionShape& s, int width, int first,
                      int count) {
  Pieces pieces;
  const int row_length = s.output(1);
  int at = 0;
  while (at < count) {
    const int y = (first + at) / row_length, x = (first + at) % row_length;
    const int length = std::min(count - at, row_length - x);
    pieces.push_back(
        {y * s.stride[0] * width + x * s.stride[1], at, length, s.stride[1]});
    at += length;
  }
  return pieces;
}

// The weights [first, first + count) of a kernel.
Pieces PiecesOfKernel(const ConvolutionShape& s, const PaddedImage& p,
                      int first, int count) {
  Pieces pieces;
  const bool rows_run = s.dilation[1] == 1;
  const int run = rows_run ? s.kernel[1] * p.channels : p.channels;
  int at = 0;
  while (at < count) {
    const int which = (first + at) / run, within = (first + at) % run;
    const int h = rows_run ? which : which / s.kernel[1];
    const int w = rows_run ? 0 : which % s.kernel[1];
    const int length = std::min(count - at, run - within);
    pieces.push_back(
        {(h * s.dilation[0] * p.width + w * s.dilation[1]) * p.channels +
             within,
         at, length, 1});
    at += length;
  }
  return pieces;
}

}  // namespace

template <typename T>
void PadImage(const ConvolutionShape& s, const PaddedImage& p, const T* image,
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

template <typename T>
void PadInterleaved(const ConvolutionShape& s, const PaddedImage& p,
                    const T* image, T* padded) {
  if (s.pad[0] || s.pad[1]) std::fill(padded, padded + p.size, T(0));
  for (int row = 0; row < s.input[0]; ++row) {
    BestKernels<T>().transpose(
        p.channels, s.input[1], image + row * s.input[1],
        s.input[0] * s.input[1],
        padded + ((row + s.pad[0]) * p.width + s.pad[1]) * p.channels,
        p.channels);
  }
}

std::vector<int> KernelOffsets(const ConvolutionShape& s,
                               const PaddedImage& p) {
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

std::vector<Pieces> PixelPanels(const ConvolutionShape& s, int image_width,
                                int panel_columns) {
  return PiecesOfPanels(s.output(0) * s.output(1), panel_columns,
                        [&](int first, int count) {
                          return PiecesOfPixels(s, image_width, first, count);
                        });
}

std::vector<Pieces> KernelPanels(const ConvolutionShape& s,
                                 const PaddedImage& p, int panel_columns) {
  return PiecesOfPanels(
      p.channels * s.kernel[0] * s.kernel[1], panel_columns,
      [&](int first, int count) { return PiecesOfKernel(s, p, first, count); });
}

#define INSTANTIATE(T)                                                      \
  template void PadImage(const ConvolutionShape&, const PaddedImage&,       \
                         const T*, T*);                                     \
  template void PadInterleaved(const ConvolutionShape&, const PaddedImage&, \
                               const T*, T*)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace engine
}  // namespace caffe
