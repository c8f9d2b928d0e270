#ifndef CAFFE_UTIL_PICTURE_HPP_
#define CAFFE_UTIL_PICTURE_HPP_

// Reads JPEG and PNG files without OpenCV, for ImageData, for Data with encoded
// records, and for the tools convert_imageset and compute_image_mean.

#include <string>

#include "caffe/proto/caffe.pb.h"

namespace caffe {

enum class PictureColors { kBGR, kGrey, kAsStored };

/**
 * @brief Makes a datum the pixels of a JPEG or PNG file, as
 *        `bayescaffe data folder` does: upright, and over white where it is
 *        transparent. The label stays.
 *
 * @param content what the file holds
 */
void DecodePicture(const std::string& content, PictureColors colors,
                   Datum* datum);

/// Brings the pixels of a datum to a size, by bilinear interpolation between
/// the centres of the nearest four, as OpenCV does by default.
void ResizePicture(int height, int width, Datum* datum);

/// Refuses what cannot be opened and what is not a file: a device or a pipe may
/// have no end.
void CheckIsFile(const std::string& name);

/// Reads a picture. Height and width 0 leave it as large as it is.
void ReadPicture(const std::string& filename, int height, int width,
                 bool is_color, Datum* datum);

/// The pixels of an encoded record, as force_color and force_gray ask for them.
Datum DecodedRecord(const Datum& encoded, const TransformationParameter& param);

}  // namespace caffe

#endif  // CAFFE_UTIL_PICTURE_HPP_
