#include "caffe/util/picture.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "caffe/common.hpp"
#include "caffe/util/io.hpp"
#include "caffe/util/picture_formats.hpp"

namespace caffe {

namespace {

/// Where a pixel of a resized row or column is in the original.
struct Between {
  int first, second;
  float share_of_second;
};

std::vector<Between> Places(int from, int to) {
  std::vector<Between> places;
  for (int i = 0; i < to; ++i) {
    const float at = (i + 0.5f) * from / to - 0.5f;
    const int first = std::max(0, static_cast<int>(std::floor(at)));
    const int second = std::min(first + 1, from - 1);
    places.push_back({first, second, std::max(0.f, at - first)});
  }
  return places;
}

/// What a name ends with, in small letters; "jpg" for "jpeg".
std::string Extension(const std::string& name) {
  std::string end = name.substr(name.rfind('.') + 1);
  for (char& letter : end) letter = std::tolower(letter);
  return end == "jpeg" ? "jpg" : end;
}

}  // namespace

void DecodePicture(const std::string& content, PictureColors colors,
                   Datum* datum) {
  const Picture picture = DecodeFile(content);
  const bool is_grey = colors == PictureColors::kGrey ||
                       (colors == PictureColors::kAsStored && picture.is_grey);
  const size_t pixels = size_t{1} * picture.height * picture.width;
  std::string data((is_grey ? 1 : 3) * pixels, 0);
  for (size_t i = 0; i < pixels; ++i) {
    const uint8_t* rgb = &picture.rgb[3 * i];
    if (is_grey) {
      // Luma by ITU-R 601, in fixed point: of grey, the grey itself.
      data[i] = (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 32768) >> 16;
    } else {
      for (int c = 0; c < 3; ++c) data[c * pixels + i] = rgb[2 - c];
    }
  }
  datum->set_channels(is_grey ? 1 : 3);
  datum->set_height(picture.height);
  datum->set_width(picture.width);
  datum->set_encoded(false);
  datum->clear_float_data();
  datum->set_data(std::move(data));
}

void ResizePicture(int height, int width, Datum* datum) {
  const std::vector<Between> ys = Places(datum->height(), height);
  const std::vector<Between> xs = Places(datum->width(), width);
  const auto* from = reinterpret_cast<const uint8_t*>(datum->data().data());
  std::string resized;
  resized.reserve(size_t{1} * datum->channels() * height * width);
  for (int c = 0; c < datum->channels(); ++c) {
    for (const Between& y : ys) {
      const uint8_t* above = from + size_t{1} * y.first * datum->width();
      const uint8_t* below = from + size_t{1} * y.second * datum->width();
      for (const Between& x : xs) {
        const auto along = [&](const uint8_t* row) {
          return row[x.first] +
                 x.share_of_second * (row[x.second] - row[x.first]);
        };
        const float value =
            along(above) + y.share_of_second * (along(below) - along(above));
        resized.push_back(static_cast<char>(value + 0.5f));
      }
    }
    from += size_t{1} * datum->height() * datum->width();
  }
  datum->set_height(height);
  datum->set_width(width);
  datum->set_data(std::move(resized));
}

void CheckIsFile(const std::string& name) {
  struct stat status;
  if (stat(name.c_str(), &status) != 0 || access(name.c_str(), R_OK) != 0) {
    LOG(FATAL) << "Cannot open " << name << ": " << std::strerror(errno);
  }
  CHECK(S_ISREG(status.st_mode))
      << name << " is not a file, but a folder, a device or a pipe";
}

void ReadPicture(const std::string& filename, int height, int width,
                 bool is_color, Datum* datum) {
  InFile(filename, [&] {
    CheckIsFile(filename);
    errno = 0;
    std::ifstream file(filename, std::ios::binary);
    std::ostringstream content;
    if (!file || !(content << file.rdbuf())) {
      LOG(FATAL) << (errno ? std::strerror(errno) : "The file is empty");
    }
    DecodePicture(content.str(),
                  is_color ? PictureColors::kBGR : PictureColors::kGrey, datum);
  });
  if (height > 0 && width > 0) ResizePicture(height, width, datum);
}

Datum DecodedRecord(const Datum& encoded,
                    const TransformationParameter& param) {
  CHECK(!(param.force_color() && param.force_gray()))
      << "cannot set both force_color and force_gray";
  Datum datum;
  datum.set_label(encoded.label());
  DecodePicture(encoded.data(),
                param.force_color()  ? PictureColors::kBGR
                : param.force_gray() ? PictureColors::kGrey
                                     : PictureColors::kAsStored,
                &datum);
  return datum;
}

#ifndef USE_OPENCV

bool DecodeDatumNative(Datum* datum) {
  if (!datum->encoded()) return false;
  DecodePicture(std::string(datum->data()), PictureColors::kAsStored, datum);
  return true;
}

bool DecodeDatum(Datum* datum, bool is_color) {
  if (!datum->encoded()) return false;
  DecodePicture(std::string(datum->data()),
                is_color ? PictureColors::kBGR : PictureColors::kGrey, datum);
  return true;
}

// An encoding asks for the file as it is, in place of its pixels.
bool ReadImageToDatum(const string& filename, const int label, const int height,
                      const int width, const bool is_color,
                      const std::string& encoding, Datum* datum) {
  try {
    ReadPicture(filename, height, width, is_color, datum);
  } catch (const Error& error) {
    LOG(ERROR) << error.message();
    return false;
  }
  datum->set_label(label);
  if (encoding.empty()) return true;
  if (height > 0 || width > 0 || Extension(filename) != Extension(encoding)) {
    LOG(FATAL) << filename << ": cannot be encoded as " << encoding
               << ": -encoded stores files as they are, without -resize_height,"
                  " -resize_width or another -encode_type";
  }
  return ReadFileToDatum(filename, label, datum);
}

#endif  // USE_OPENCV

}  // namespace caffe
