#include "caffe/error.hpp"

#include <cctype>

namespace caffe {

Error::Error(const std::string& file, int line, const std::string& message)
    : std::runtime_error(message), file_(file), line_(line), message_(message) {
  while (!message_.empty() && std::isspace(message_.back())) {
    message_.pop_back();
  }
  what_ = message_;
  if (!file_.empty()) {
    what_ = file_ + ":" + std::to_string(line_) + ": " + what_;
  }
}

Error::~Error() {}

void Error::Name(const std::string& place) {
  if (message_.find(place) != std::string::npos) return;
  *this = Error(file_, line_, place + ": " + message_);
}

void error::ThrowOutOfMemory(const std::string& layer) {
  throw Error("", 0,
              "layer '" + layer +
                  "': out of memory; its sizes ask for more than there is");
}

void error::Thrower::operator&(const std::ostream& text) const {
  throw Error(file_, line_, static_cast<const Text&>(text).str());
}

}  // namespace caffe
