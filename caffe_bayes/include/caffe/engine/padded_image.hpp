#ifndef CAFFE_ENGINE_PADDED_IMAGE_HPP_
#define CAFFE_ENGINE_PADDED_IMAGE_HPP_

// Images with their padding around them, and how panels are packed from them:
// what ConvolutionForward and the gradients share.

#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/kernels.hpp"

namespace caffe {
namespace engine {

/// The size of one group of one image with its padding. All that a convolution
/// reads is inside.
struct PaddedImage {
  explicit PaddedImage(const ConvolutionShape& s)
      : channels(s.channels / s.groups),
        height(s.input[0] + 2 * s.pad[0]),
        width(s.input[1] + 2 * s.pad[1]),
        size(channels * height * width) {}
  int channels, height, width, size;
};

/// The pieces of the padded image that make up the columns of one panel.
typedef std::vector<Piece> Pieces;

/// Copies an image into a padded one, and sets the padding to 0.
template <typename T>
void PadImage(const ConvolutionShape& s, const PaddedImage& p, const T* image,
              T* padded);

/// The same, with the channels innermost: (row, column, channel).
template <typename T>
void PadInterleaved(const ConvolutionShape& s, const PaddedImage& p,
                    const T* image, T* padded);

/// Where the weight (channel, row, column) of a kernel at the output's first
/// pixel reads the padded image.
std::vector<int> KernelOffsets(const ConvolutionShape& s, const PaddedImage& p);

/// The pieces of panels with `panel_columns` columns, one for each pixel of the
/// output, in rows of `image_width` numbers.
std::vector<Pieces> PixelPanels(const ConvolutionShape& s, int image_width,
                                int panel_columns);

/// The pieces of panels with `panel_columns` columns, one for each weight of a
/// kernel in the order (row, column, channel), in an interleaved image.
std::vector<Pieces> KernelPanels(const ConvolutionShape& s,
                                 const PaddedImage& p, int panel_columns);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_PADDED_IMAGE_HPP_
