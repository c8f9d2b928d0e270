#include "caffe/util/picture_formats.hpp"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

// libjpeg's header needs cstdio's.
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

#include "caffe/common.hpp"

namespace caffe {

namespace {

/// A product of two shares of 255, rounded.
inline int Share(int a, int b) { return (a * b + 127) / 255; }

/// Refuses a picture that is too large, before it takes memory.
void CheckPixels(uint64_t height, uint64_t width) {
  const char* name = "BAYESCAFFE_MAX_PIXELS";
  const char* chosen = std::getenv(name);
  const uint64_t limit =
      chosen ? std::strtoull(chosen, nullptr, 10) : 100000000;
  if (height * width <= limit) return;
  LOG(FATAL) << "has " << width << " x " << height << " pixels, more than the "
             << limit << " that are allowed. If it is no damage and memory "
             << "suffices, set " << name << "=" << height * width
             << " in the environment";
}

// ---- JPEG -------------------------------------------------------------------

/// What EXIF says of how the camera was held: 1 is upright.
int Orientation(const uint8_t* exif, size_t size) {
  const size_t kHead = 6, kEntry = 12;  // "Exif\0\0"; an entry of a directory
  if (size < kHead + 8 || std::memcmp(exif, "Exif\0", kHead) != 0) return 1;
  const uint8_t* tiff = exif + kHead;
  size -= kHead;
  const bool is_little = tiff[0] == 'I';
  const auto number = [&](size_t at, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value = value << 8 | tiff[at + (is_little ? bytes - 1 - i : i)];
    }
    return value;
  };
  const size_t directory = number(4, 4);
  if (directory > size - 2) return 1;
  const size_t entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + kEntry * i;
    if (entry + kEntry > size) return 1;
    if (number(entry, 2) == 0x0112) return number(entry + 8, 2);
  }
  return 1;
}

/// Turns a picture as EXIF's orientation says.
void TurnUpright(int orientation, Picture* picture) {
  if (orientation < 2 || orientation > 8) return;
  const bool is_turned = orientation >= 5;
  const bool from_bottom = orientation == 3 || orientation == 4 ||
                           orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 ||
                          orientation == 7 || orientation == 8;
  Picture lying = *picture;
  if (is_turned) std::swap(picture->height, picture->width);
  for (int y = 0; y < picture->height; ++y) {
    for (int x = 0; x < picture->width; ++x) {
      int from_y = is_turned ? x : y, from_x = is_turned ? y : x;
      if (from_bottom) from_y = lying.height - 1 - from_y;
      if (from_right) from_x = lying.width - 1 - from_x;
      std::memcpy(picture->row(y) + 3 * x, lying.row(from_y) + 3 * from_x, 3);
    }
  }
}

/// A decoder of libjpeg, whose errors jump. So no function that calls it may
/// have anything to clean up.
class JpegReader {
 public:
  explicit JpegReader(const std::string& content) : content_(content) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) {
      JpegReader* reader = static_cast<JpegReader*>(info->client_data);
      info->err->format_message(info, reader->message_);
      std::longjmp(reader->failed_, 1);
    };
    errors_.emit_message = [](j_common_ptr info, int) {
      // Only this warning tells of missing pixels.
      if (info->err->msg_code == JWRN_JPEG_EOF) info->err->error_exit(info);
    };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;

  bool ReadHeader() {
    if (setjmp(failed_)) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_,
                 reinterpret_cast<const unsigned char*>(content_.data()),
                 content_.size());
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  bool Start() {
    if (setjmp(failed_)) return false;
    const bool is_cmyk = info_.jpeg_color_space == JCS_CMYK ||
                         info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info_);
    return true;
  }
  bool ReadRow(uint8_t* row) {
    if (setjmp(failed_)) return false;
    jpeg_read_scanlines(&info_, &row, 1);
    return true;
  }
  const jpeg_decompress_struct& info() const { return info_; }
  const char* message() const { return message_; }

 private:
  const std::string& content_;
  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_;
  std::jmp_buf failed_;
  char message_[JMSG_LENGTH_MAX] = "";
};

/// The pixels as they are stored, and how they lie.
Picture ReadLyingJpeg(const std::string& content, int* orientation) {
  JpegReader reader(content);
  if (!reader.ReadHeader()) LOG(FATAL) << reader.message();
  const jpeg_decompress_struct& info = reader.info();
  CheckPixels(info.image_height, info.image_width);
  if (!reader.Start()) LOG(FATAL) << reader.message();
  Picture picture;
  picture.height = info.output_height;
  picture.width = info.output_width;
  picture.is_grey = info.num_components == 1;
  picture.rgb.resize(size_t{3} * picture.height * picture.width);
  const int channels = info.output_components;
  std::vector<uint8_t> row(size_t{4} * picture.width);
  for (int y = 0; y < picture.height; ++y) {
    if (!reader.ReadRow(row.data())) LOG(FATAL) << reader.message();
    uint8_t* rgb = picture.row(y);
    for (int x = 0; x < picture.width; ++x) {
      const uint8_t* pixel = &row[channels * x];
      for (int c = 0; c < 3; ++c) {
        // CMYK is inverted in files, as Adobe's programs do it.
        rgb[3 * x + c] = channels == 4 ? Share(pixel[c], pixel[3]) : pixel[c];
      }
    }
  }
  for (auto* marker = info.marker_list; marker; marker = marker->next) {
    const int found = Orientation(marker->data, marker->data_length);
    if (found != 1) *orientation = found;
  }
  return picture;
}

Picture ReadJpeg(const std::string& content) {
  int orientation = 1;
  Picture picture = ReadLyingJpeg(content, &orientation);
  TurnUpright(orientation, &picture);
  return picture;
}

// ---- PNG --------------------------------------------------------------------

/// The same for libpng: its errors jump.
class PngReader {
 public:
  explicit PngReader(const std::string& content) : content_(content) {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, const char* message) {
          auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
          std::strncpy(reader->message_, message, sizeof(message_) - 1);
          std::longjmp(reader->failed_, 1);
        },
        [](png_structp, const char*) {});
    CHECK(png_) << "libpng cannot start";
    info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;

  bool ReadHeader() {
    if (setjmp(failed_)) return false;
    png_set_read_fn(png_, this, [](png_structp png, uint8_t* to, size_t count) {
      auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
      if (count > reader->content_.size() - reader->position_) {
        png_error(png, "the file ends too early");
      }
      std::memcpy(to, reader->content_.data() + reader->position_, count);
      reader->position_ += count;
    });
    png_read_info(png_, info_);
    is_grey_ = !(png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR);
    // Whatever the file holds, rows are red, green, blue, opacity.
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_add_alpha(png_, 255, PNG_FILLER_AFTER);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }
  bool ReadRows(uint8_t** rows) {
    if (setjmp(failed_)) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }
  int height() const { return png_get_image_height(png_, info_); }
  int width() const { return png_get_image_width(png_, info_); }
  bool is_grey() const { return is_grey_; }
  const char* message() const { return message_; }

 private:
  const std::string& content_;
  size_t position_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool is_grey_ = false;
  std::jmp_buf failed_;
  char message_[200] = "";
};

Picture ReadPng(const std::string& content) {
  PngReader reader(content);
  if (!reader.ReadHeader()) LOG(FATAL) << reader.message();
  CheckPixels(reader.height(), reader.width());
  Picture picture;
  picture.height = reader.height();
  picture.width = reader.width();
  picture.is_grey = reader.is_grey();
  const size_t pixels = size_t{1} * picture.height * picture.width;
  std::vector<uint8_t>& rgba = picture.rgb;
  rgba.resize(4 * pixels);
  std::vector<uint8_t*> rows;
  for (int y = 0; y < picture.height; ++y) {
    rows.push_back(&rgba[size_t{4} * picture.width * y]);
  }
  if (!reader.ReadRows(rows.data())) LOG(FATAL) << reader.message();
  // In place: a pixel never comes to lie behind where it was.
  for (size_t i = 0; i < pixels; ++i) {
    const int opacity = rgba[4 * i + 3];
    for (int c = 0; c < 3; ++c) {
      picture.rgb[3 * i + c] = 255 - opacity + Share(rgba[4 * i + c], opacity);
    }
  }
  picture.rgb.resize(3 * pixels);
  return picture;
}

}  // namespace

Picture DecodeFile(const std::string& content) {
  if (content.compare(0, 3, "\xFF\xD8\xFF") == 0) return ReadJpeg(content);
  if (content.compare(0, 4, "\x89PNG") == 0) return ReadPng(content);
  LOG(FATAL) << "Neither a JPEG nor a PNG picture. Caffe reads only these; "
                "`bayescaffe data folder` makes LMDBs of other formats, too";
  return Picture();
}

}  // namespace caffe
