#ifndef CAFFE_UTIL_PICTURE_FORMATS_HPP_
#define CAFFE_UTIL_PICTURE_FORMATS_HPP_

// The pixels of JPEG and PNG files, by libjpeg and libpng.

#include <cstdint>
#include <string>
#include <vector>

namespace caffe {

/// Red, green, blue of each pixel, row by row from the top.
struct Picture {
  int height = 0, width = 0;
  bool is_grey = false;
  std::vector<uint8_t> rgb;

  uint8_t* row(int y) { return rgb.data() + size_t{3} * width * y; }
};

/// Decodes what a file holds: upright as EXIF says, and over white where it is
/// transparent.
///
/// A few kilobytes can be gigabytes of pixels, so a picture of more than 100
/// million of them is an error, unless BAYESCAFFE_MAX_PIXELS allows it. A pixel
/// takes up to 8 bytes of memory while it is decoded (9 in a progressive JPEG).
Picture DecodeFile(const std::string& content);

}  // namespace caffe

#endif  // CAFFE_UTIL_PICTURE_FORMATS_HPP_
