#include "caffe/util/printable.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace caffe {

namespace {

// The bytes of the character of UTF-8 that begins at `next`, and its number; 0
// if it is none.
int ReadCharacter(const char* next, const char* end, uint32_t* number) {
  const uint8_t first = *next;
  if (first < 0x80) {
    *number = first;
    return 1;
  }
  const int size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || end - next < size) return 0;
  *number = first & (0xff >> (size + 1));
  for (int i = 1; i < size; ++i) {
    const uint8_t byte = next[i];
    if ((byte & 0xc0) != 0x80) return 0;
    *number = *number << 6 | (byte & 0x3f);
  }
  return size;
}

// What moves the cursor, changes colours or titles, or turns the direction of
// writing.
bool IsUnsafe(uint32_t number) {
  const auto is_within = [&](uint32_t first, uint32_t last) {
    return first <= number && number <= last;
  };
  return (number < 0x20 && number != '\n' && number != '\t') ||
         is_within(0x7f, 0x9f) || is_within(0x200e, 0x200f) ||
         is_within(0x2028, 0x202e) || is_within(0x2066, 0x2069) ||
         is_within(0xd800, 0xdfff);
}

void AppendEscaped(const char* bytes, int size, std::string* text) {
  for (int i = 0; i < size; ++i) {
    char escaped[5];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x",
                  static_cast<uint8_t>(bytes[i]));
    *text += escaped;
  }
}

ssize_t WritePrintable(void*, const char* data, size_t size) {
  const std::string text = Printable(std::string(data, size));
  for (size_t done = 0; done < text.size();) {
    const ssize_t part =
        write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (part < 0 && errno != EINTR) return 0;
    done += std::max<ssize_t>(part, 0);
  }
  return size;
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string printable;
  const char *next = text.data(), *const end = next + text.size();
  while (next < end) {
    uint32_t number = 0;
    const int size = ReadCharacter(next, end, &number);
    if (size == 0 || IsUnsafe(number)) {
      AppendEscaped(next, std::max(size, 1), &printable);
    } else {
      printable.append(next, size);
    }
    next += std::max(size, 1);
  }
  return printable;
}

void MakeStderrPrintable() {
#ifdef __GLIBC__
  // There stderr is a variable, which glog asks each time.
  cookie_io_functions_t functions = {};
  functions.write = WritePrintable;
  std::FILE* const printable = fopencookie(nullptr, "w", functions);
  if (!printable) return;
  std::setvbuf(printable, nullptr, _IONBF, 0);
  stderr = printable;
#endif
}

}  // namespace caffe
