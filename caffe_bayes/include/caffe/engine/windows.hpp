#ifndef CAFFE_ENGINE_WINDOWS_HPP_
#define CAFFE_ENGINE_WINDOWS_HPP_

#include <algorithm>
#include <cstddef>

namespace caffe {
namespace engine {

/// The windows of a pooling layer over each plane of its input. Index 0 is
/// vertical, 1 horizontal.
struct Windows {
  int input[2];
  int output[2];  // how many windows there are
  int kernel[2];
  int stride[2];
  int pad[2];

  int input_size() const { return input[0] * input[1]; }
  int output_size() const { return output[0] * output[1]; }

  /// Along an axis, how many numbers of the plane and its padding window i
  /// covers: what Caffe divides sums by.
  int extent(int axis, int i) const {
    const int start = i * stride[axis] - pad[axis];
    return std::min(start + kernel[axis], input[axis] + pad[axis]) - start;
  }

  /// Whether there is one window, the plane.
  bool is_plane() const {
    return output_size() == 1 && pad[0] == 0 && pad[1] == 0 &&
           kernel[0] == input[0] && kernel[1] == input[1];
  }

  /// Whether all columns of the windows are columns of the plane.
  bool are_inside() const { return pad[1] == 0 && end() <= input[1]; }
  /// How wide rows are that have all columns of the plane and of the windows,
  /// and how many numbers a plane of such rows has.
  ptrdiff_t padded_width() const {
    return std::max<ptrdiff_t>(pad[1] + input[1], end());
  }
  ptrdiff_t padded_size() const { return input[0] * padded_width(); }

  /// The windows of the gradient of sums: each number of the plane is in those
  /// windows that are in its window here. They lie where they start, so they
  /// are as far apart as the stride, with 0 between them.
  Windows gradient() const {
    Windows back;
    for (int axis = 0; axis < 2; ++axis) {
      back.input[axis] = (output[axis] - 1) * stride[axis] + 1;
      back.output[axis] = input[axis];
      back.kernel[axis] = kernel[axis];
      back.stride[axis] = 1;
      back.pad[axis] = kernel[axis] - 1 - pad[axis];
    }
    return back;
  }

 private:
  // The end of the last window of a row, counted from the first one's start.
  ptrdiff_t end() const {
    return static_cast<ptrdiff_t>(output[1] - 1) * stride[1] + kernel[1];
  }
};

/// Whether the engine pools these windows. It keeps planes with their padding,
/// so it leaves windows to Caffe that are much larger than the plane.
inline bool IsPooled(const Windows& windows) {
  const ptrdiff_t most = 4 * static_cast<ptrdiff_t>(windows.input_size());
  return std::max(windows.padded_size(), windows.gradient().padded_size()) <=
         most + (1 << 14);
}

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_WINDOWS_HPP_
