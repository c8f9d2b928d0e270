#include "caffe/engine/depthwise.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/kernels.hpp"
#include "caffe/engine/rows.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {
namespace engine {

namespace {

int Area(const ConvolutionShape& s) { return s.kernel[0] * s.kernel[1]; }

// A channel of an image with its padding. With a stride of n, the columns 0, n,
// 2n ... of a row come first, then the columns 1, n + 1 ...: what a weight
// meets in a row of the output is then in one piece.
struct SplitPlane {
  explicit SplitPlane(const ConvolutionShape& shape)
      : s(shape),
        part((s.input[1] + 2 * s.pad[1] + s.stride[1] - 1) / s.stride[1]),
        row(part * s.stride[1]),
        size(row * (s.input[0] + 2 * s.pad[0])) {
    for (int i = 0; i < Area(s); ++i) {
      const int h = i / s.kernel[1] * s.dilation[0];
      const int w = i % s.kernel[1] * s.dilation[1];
      offsets.push_back(h * row + Column(w));
    }
  }

  // Where a column of the padded image is.
  int Column(int w) const { return w % s.stride[1] * part + w / s.stride[1]; }

  template <typename T>
  void Fill(const T* image, T* plane) const {
    std::fill(plane, plane + size, T(0));
    for (int h = 0; h < s.input[0]; ++h) {
      const T* from = image + h * s.input[1];
      T* to = plane + (h + s.pad[0]) * row;
      if (s.stride[1] == 1) {
        std::copy(from, from + s.input[1], to + s.pad[1]);
      } else if (s.stride[1] == 2) {
        const int pairs = s.input[1] / 2;
        BestKernels<T>().split_pairs(pairs, from, to + Column(s.pad[1]),
                                     to + Column(s.pad[1] + 1));
        if (s.input[1] % 2) to[Column(s.pad[1] + 2 * pairs)] = from[2 * pairs];
      } else {
        for (int w = 0; w < s.input[1]; ++w) to[Column(w + s.pad[1])] = from[w];
      }
    }
  }

  const ConvolutionShape s;
  const int part, row, size;
  std::vector<int> offsets;  // of the kernel's weights
};

// A channel of dy with zeros around it, so that for every number of x all
// weights of the kernel that it meets meet something here. Which weights these
// are depends on the number's row and column in the padded image, by their
// remainders when divided by the strides.
struct WidenedPlane {
  struct Taps {
    std::vector<int> offsets, weights;
  };

  explicit WidenedPlane(const ConvolutionShape& shape)
      : s(shape), taps(s.stride[0] * s.stride[1]) {
    for (int axis = 0; axis < 2; ++axis) {
      before[axis] = s.dilation[axis] * (s.kernel[axis] - 1) / s.stride[axis];
      const int last = (s.input[axis] + s.pad[axis] - 1) / s.stride[axis];
      extent[axis] = before[axis] + std::max(s.output(axis), last + 1);
    }
    for (int i = 0; i < Area(s); ++i) {
      const int h = i / s.kernel[1] * s.dilation[0];
      const int w = i % s.kernel[1] * s.dilation[1];
      Taps& own = taps[h % s.stride[0] * s.stride[1] + w % s.stride[1]];
      own.offsets.push_back((before[0] - h / s.stride[0]) * extent[1] +
                            before[1] - w / s.stride[1]);
      own.weights.push_back(i);
    }
  }
  int size() const { return extent[0] * extent[1]; }

  template <typename T>
  void Fill(const T* dy, T* plane) const {
    std::fill(plane, plane + size(), T(0));
    for (int h = 0; h < s.output(0); ++h) {
      const T* from = dy + h * s.output(1);
      std::copy(from, from + s.output(1),
                plane + (h + before[0]) * extent[1] + before[1]);
    }
  }

  const ConvolutionShape s;
  int before[2], extent[2];
  std::vector<Taps> taps;  // of each pair of remainders
};

}  // namespace

bool IsDepthwise(const ConvolutionShape& s) {
  return s.groups > 1 && s.groups == s.channels && s.groups == s.outputs;
}

template <typename T>
void DepthwiseForward(const ConvolutionShape& s, const T* x, const T* w,
                      const T* bias, T* y) {
  const SplitPlane split(s);
  const int input = s.input[0] * s.input[1], width = s.output(1);
  ParallelFor(s.images * s.channels, [&](int i) {
    const int channel = i % s.channels;
    const Scratch<T> plane(split.size);
    split.Fill<T>(x + static_cast<ptrdiff_t>(i) * input, plane);
    T* out = y + static_cast<ptrdiff_t>(i) * s.output(0) * width;
    for (int h = 0; h < s.output(0); ++h) {
      BestKernels<T>().weighted_row(
          width, Area(s), split.offsets.data(), w + channel * Area(s),
          bias ? bias[channel] : T(0), plane + h * s.stride[0] * split.row,
          out + h * width);
    }
  });
}

template <typename T>
void DepthwiseInputGradient(const ConvolutionShape& s, const T* dy, const T* w,
                            T* dx) {
  const WidenedPlane wide(s);
  const int stride = s.stride[1], pad = s.pad[1];
  const int output = s.output(0) * s.output(1);
  ParallelFor(s.images * s.channels, [&](int i) {
    const Scratch<T> plane(wide.size());
    wide.Fill<T>(dy + static_cast<ptrdiff_t>(i) * output, plane);
    const Scratch<T> weights(Area(s)), line(s.input[1]);
    T* to = dx + static_cast<ptrdiff_t>(i) * s.input[0] * s.input[1];
    for (int h = 0; h < s.input[0]; ++h, to += s.input[1]) {
      const int padded_h = h + s.pad[0];
      for (int remainder = 0; remainder < stride; ++remainder) {
        const WidenedPlane::Taps& taps =
            wide.taps[padded_h % s.stride[0] * stride + remainder];
        const int count = taps.weights.size();
        for (int k = 0; k < count; ++k) {
          weights[k] = w[i % s.channels * Area(s) + taps.weights[k]];
        }
        // The columns of x whose place in the padded image has the remainder.
        const int first = (pad - remainder + stride - 1) / stride;
        const int end = (s.input[1] + pad - remainder + stride - 1) / stride;
        T* row = stride == 1 ? to : line;
        BestKernels<T>().weighted_row(
            end - first, count, taps.offsets.data(), weights, T(0),
            plane + padded_h / s.stride[0] * wide.extent[1] + first, row);
        if (stride == 1) continue;
        for (int v = first; v < end; ++v) {
          to[v * stride + remainder - pad] = row[v - first];
        }
      }
    }
  });
}

template <typename T>
void DepthwiseWeightGradient(const ConvolutionShape& s, const T* x, const T* dy,
                             T* dw) {
  const SplitPlane split(s);
  const int input = s.input[0] * s.input[1];
  const int output = s.output(0) * s.output(1);
  const Scratch<T> sums(static_cast<size_t>(s.images) * s.channels * Area(s));
  ParallelFor(s.images * s.channels, [&](int i) {
    const Scratch<T> plane(split.size);
    split.Fill<T>(x + static_cast<ptrdiff_t>(i) * input, plane);
    BestKernels<T>().products_of_rows(
        s.output(0), s.output(1), dy + static_cast<ptrdiff_t>(i) * output,
        plane, s.stride[0] * split.row, Area(s), split.offsets.data(),
        sums + static_cast<ptrdiff_t>(i) * Area(s));
  });
  SumOverImages<T>({s.images, s.channels * Area(s), 1}, sums, true, dw);
}

#define INSTANTIATE(T)                                                        \
  template void DepthwiseForward(const ConvolutionShape&, const T*, const T*, \
                                 const T*, T*);                               \
  template void DepthwiseInputGradient(const ConvolutionShape&, const T*,     \
                                       const T*, T*);                         \
  template void DepthwiseWeightGradient(const ConvolutionShape&, const T*,    \
                                        const T*, T*)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace engine
}  // namespace caffe
