#ifndef CAFFE_ERROR_HPP_
#define CAFFE_ERROR_HPP_

// A failed CHECK, and LOG(FATAL), throw caffe::Error; glog's end the process.
// caffe/common.hpp includes this, so it holds for all of Caffe.

#include <glog/logging.h>

#include <memory>
#include <new>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace caffe {

/// What went wrong, in Caffe's words, and where in its source that was noticed.
class Error : public std::runtime_error {
 public:
  Error(const std::string& file, int line, const std::string& message);
  ~Error() override;

  /// file:line: message, or the message alone if no file was given.
  const char* what() const noexcept override { return what_.c_str(); }
  /// The file is relative to the root of Caffe's source.
  const std::string& file() const { return file_; }
  int line() const { return line_; }
  const std::string& message() const { return message_; }

  /// Says where it happened, if the message does not yet.
  void Name(const std::string& place);

 private:
  std::string file_;
  int line_;
  std::string message_, what_;
};

namespace error {

/// For what the standard library throws where a size is beyond all memory: it
/// tells nothing.
[[noreturn]] void ThrowOutOfMemory(const std::string& layer);

}  // namespace error

/// Returns what `work` does; an error in it names the layer.
template <typename Work>
auto InLayer(const std::string& layer, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (Error& error) {
    error.Name("layer '" + layer + "'");
    throw;
  } catch (const std::bad_alloc&) {
    error::ThrowOutOfMemory(layer);
  } catch (const std::length_error&) {
    error::ThrowOutOfMemory(layer);
  }
}

/// The same for a file that is read.
template <typename Work>
auto InFile(const std::string& file, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (Error& error) {
    error.Name(file);
    throw;
  }
}

// What the macros below are made of.
namespace error {

/// The message that << is writing.
class Text : public std::ostringstream {
 public:
  Text() {}
  explicit Text(const std::string& failed) {
    *this << "Check failed: " << failed << " ";
  }
  std::ostream& stream() { return *this; }
};

/// Throws the message on its right: & comes after all <<. (In glog a destructor
/// ends the message; one that threw would be fatal where an operand of <<
/// throws too.)
class Thrower {
 public:
  Thrower(const char* file, int line) : file_(file), line_(line) {}
  [[noreturn]] void operator&(const std::ostream& text) const;

 private:
  const char* file_;
  int line_;
};

// glog's LOG_IF writes this before LOG.
inline const Thrower& operator&(const google::LogMessageVoidify&,
                                const Thrower& thrower) {
  return thrower;
}

template <typename T>
T NotNull(const char* file, int line, const char* what, T&& pointer) {
  if (pointer == nullptr) {
    Thrower(file, line) & Text().stream() << what << " must not be null";
  }
  return std::forward<T>(pointer);
}

}  // namespace error

/// For destructors, which no error may leave: does the work, and logs the
/// error.
template <typename Work>
void LogErrors(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    LOG(ERROR) << error.what();
  }
}

}  // namespace caffe

// Where glog ends the process: LOG(FATAL), from which it makes CHECK, and
// these.
#undef COMPACT_GOOGLE_LOG_FATAL
#define COMPACT_GOOGLE_LOG_FATAL \
  ::caffe::error::Thrower(__FILE__, __LINE__) & ::caffe::error::Text()

#undef CHECK_OP
#define CHECK_OP(name, op, val1, val2)                               \
  while (const std::unique_ptr<std::string> caffe_failed_{           \
      google::Check##name##Impl(google::GetReferenceableValue(val1), \
                                google::GetReferenceableValue(val2), \
                                #val1 " " #op " " #val2)})           \
  ::caffe::error::Thrower(__FILE__, __LINE__) &                      \
      ::caffe::error::Text(*caffe_failed_).stream()

#undef CHECK_NOTNULL
#define CHECK_NOTNULL(val) \
  ::caffe::error::NotNull(__FILE__, __LINE__, #val, (val))

#endif  // CAFFE_ERROR_HPP_
