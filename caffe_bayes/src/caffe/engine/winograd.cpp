#include "caffe/engine/winograd.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "caffe/engine/product.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

namespace {

// The numbers of a transformed tile or kernel.
const int kNumbers = 16;

// One group of one image, padded so that whole tiles cover the output, with the
// even columns of a row before the odd ones: what the tiles of a row have at
// the same place is then one piece.
struct SplitImage {
  explicit SplitImage(const ConvolutionShape& s)
      : channels(s.channels / s.groups),
        tile_rows((s.output(0) + 1) / 2),
        tile_columns((s.output(1) + 1) / 2),
        height(2 * tile_rows + 2),
        half(tile_columns + 1),
        size(channels * height * 2 * half) {}
  int tiles() const { return tile_rows * tile_columns; }
  int channels, tile_rows, tile_columns, height, half, size;
};

template <typename T>
void Split(const ConvolutionShape& s, const SplitImage& split, const T* image,
           T* out) {
  std::fill(out, out + split.size, T(0));
  // The image's columns 0, 2, 4 ... are even ones only if the padding is even.
  const int pad = s.pad[1], width = s.input[1];
  const int first = (pad % 2) * split.half + pad / 2;
  const int second = pad % 2 ? (pad + 1) / 2 : split.half + pad / 2;
  for (int c = 0; c < split.channels; ++c) {
    for (int row = 0; row < s.input[0]; ++row) {
      const T* from = image + (c * s.input[0] + row) * width;
      T* to = out + (c * split.height + row + s.pad[0]) * 2 * split.half;
      BestKernels<T>().split_pairs(width / 2, from, to + first, to + second);
      if (width % 2) to[first + width / 2] = from[width - 1];
    }
  }
}

// Where the numbers of a tile are in the split image: (channel, row, column).
std::vector<int> TileOffsets(const SplitImage& split) {
  std::vector<int> offsets;
  for (int c = 0; c < split.channels; ++c) {
    for (int i = 0; i < kNumbers; ++i) {
      const int row = i / 4, column = i % 4;
      offsets.push_back((c * split.height + row) * 2 * split.half +
                        column % 2 * split.half + column / 2);
    }
  }
  return offsets;
}

// The tiles [first, first + count) of some images, which follow each other in
// memory, as pieces along the rows of tiles.
std::vector<Piece> PiecesOfTiles(const SplitImage& split, int first,
                                 int count) {
  std::vector<Piece> pieces;
  for (int at = 0; at < count;) {
    const int image = (first + at) / split.tiles();
    const int row = (first + at) % split.tiles() / split.tile_columns;
    const int column = (first + at) % split.tile_columns;
    const int length = std::min(count - at, split.tile_columns - column);
    pieces.push_back(
        {image * split.size + row * 4 * split.half + column, at, length, 1});
    at += length;
  }
  return pieces;
}

// The kernels of all outputs, transformed: kNumbers matrices, outputs x
// channels.
template <typename T>
void TransformWeights(const ConvolutionShape& s, const T* w, T* out) {
  const int channels = s.channels / s.groups;
  const ptrdiff_t stride = static_cast<ptrdiff_t>(s.outputs) * channels;
  ParallelFor(s.outputs, [&](int output) {
    const ptrdiff_t row = static_cast<ptrdiff_t>(output) * channels;
    const Scratch<T> planes(9 * channels);
    BestKernels<T>().transpose(channels, 9, w + 9 * row, 9, planes, channels);
    BestKernels<T>().winograd_weights(channels, planes, out + row, stride);
  });
}

}  // namespace

bool IsForWinograd(const ConvolutionShape& s) {
  for (int axis = 0; axis < 2; ++axis) {
    if (s.kernel[axis] != 3 || s.stride[axis] != 1 || s.dilation[axis] != 1) {
      return false;
    }
  }
  const int channels = s.channels / s.groups, outputs = s.outputs / s.groups;
  // Transformed weights stay in memory for the next layer: 64 MB at most, in
  // single precision.
  const int64_t kMostKernels = 1 << 20;
  if (static_cast<int64_t>(s.outputs) * channels > kMostKernels) return false;
  // Else the transforms cost more than they save.
  return channels >= 16 && outputs >= 16 && s.output(0) >= 4 &&
         s.output(1) >= 4;
}

template <typename T>
void WinogradForward(const ConvolutionShape& s, const T* x, const T* w,
                     const T* bias, T* y) {
  const Kernels<T>& kernels = BestKernels<T>();
  const SplitImage split(s);
  const int channels = split.channels, outputs = s.outputs / s.groups;
  const int width = kernels.panel_columns;
  const std::vector<int> offsets = TileOffsets(split);
  const Blocks blocks(outputs, kernels.block_rows);
  const int pixels = s.output(0) * s.output(1);
  const size_t image_size =
      static_cast<size_t>(channels) * s.input[0] * s.input[1];
  const ptrdiff_t weight_stride = static_cast<ptrdiff_t>(s.outputs) * channels;
  const Scratch<T> weights(kNumbers * weight_stride);
  TransformWeights<T>(s, w, weights);

  // A task has one group of so many images that their tiles fill the panels
  // that are worked on at once, or a part of that where there are few tasks.
  const ptrdiff_t panel_size = static_cast<ptrdiff_t>(channels) * width;
  const int at_once = PanelsAtOnce(kNumbers * panel_size * sizeof(T));
  const int together =
      std::min(s.images, std::max(1, at_once * width / split.tiles()));
  const int tasks = (s.images + together - 1) / together * s.groups;
  const int parts =
      PartsOfEach(tasks, (together * split.tiles() + width - 1) / width);
  ParallelFor(tasks * parts, [&](int task) {
    const int part = task % parts, group = task / parts % s.groups;
    const int first_image = task / parts / s.groups * together;
    const int count = std::min(together, s.images - first_image);
    const int tiles = count * split.tiles();
    const int panels = (tiles + width - 1) / width;
    const Scratch<T> images(static_cast<size_t>(together) * split.size);
    const Scratch<T> pixel_panel(kNumbers * panel_size);
    const Scratch<T> packed(at_once * kNumbers * panel_size);
    const ptrdiff_t product_size = kernels.block_rows * width;
    const Scratch<T> products(at_once * kNumbers * product_size);
    const Scratch<T> pixel_rows(4 * product_size);
    for (int i = 0; i < count; ++i) {
      Split(s, split, x + ((first_image + i) * s.groups + group) * image_size,
            images + static_cast<size_t>(i) * split.size);
    }
    const int last = panels * (part + 1) / parts;
    for (int first = panels * part / parts; first < last; first += at_once) {
      const int now = std::min(at_once, last - first);
      const auto used = [&](int p) {
        return std::min(width, tiles - (first + p) * width);
      };
      std::vector<std::vector<Piece> > pieces(now);
      for (int p = 0; p < now; ++p) {
        pieces[p] = PiecesOfTiles(split, (first + p) * width, used(p));
        kernels.pack_pieces(images, offsets.data(), offsets.size(),
                            pieces[p].data(), pieces[p].size(), pixel_panel);
        kernels.winograd_input(channels, pixel_panel, packed + p * panel_size,
                               at_once * panel_size);
      }
      for (int j = 0; j < blocks.count(); ++j) {
        const int row = group * outputs + blocks.begin(j);
        for (int i = 0; i < kNumbers; ++i) {
          const LeftOperand<T> left = {
              weights + i * weight_stride +
                  static_cast<ptrdiff_t>(row) * channels,
              channels, 1};
          for (int p = 0; p < now; ++p) {
            kernels.multiply(blocks.size(j), used(p), channels, left,
                             packed + (i * at_once + p) * panel_size,
                             products + (i * at_once + p) * product_size, width,
                             Start<T>());
          }
        }
        for (int p = 0; p < now; ++p) {
          kernels.winograd_output(blocks.size(j), products + p * product_size,
                                  at_once * product_size,
                                  bias ? bias + row : nullptr, pixel_rows);
          // Tiles that reach over the edge are cut off.
          for (const Piece& piece : pieces[p]) {
            const int tile = (first + p) * width + piece.at;
            const size_t image = first_image + tile / split.tiles();
            const int top = tile % split.tiles() / split.tile_columns * 2;
            const int side = tile % split.tile_columns * 2;
            for (int r = 0; r < 2 && top + r < s.output(0); ++r) {
              kernels.copy(blocks.size(j),
                           std::min(2 * piece.length, s.output(1) - side),
                           pixel_rows + r * 2 * width + 2 * piece.at, 4 * width,
                           y + (image * s.outputs + row) * pixels +
                               (top + r) * s.output(1) + side,
                           pixels);
            }
          }
        }
      }
    }
  });
}

template void WinogradForward(const ConvolutionShape&, const float*,
                              const float*, const float*, float*);
template void WinogradForward(const ConvolutionShape&, const double*,
                              const double*, const double*, double*);

}  // namespace engine
}  // namespace caffe
