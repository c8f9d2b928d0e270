#ifndef TESTS_FUZZ_FUZZ_HPP_
#define TESTS_FUZZ_FUZZ_HPP_

// What the fuzz targets share. libFuzzer calls a target with ever new bytes; a
// crash, a hang or a finding of a sanitizer is a defect, an exception is not.

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <string>

#include "caffe/caffe.hpp"
#include "caffe/error.hpp"

namespace fuzz {

/// Keeps quiet about bad text.
class Silence : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber,
                const std::string&) override {}
};

/// The net of a prototxt; false if the text is none.
inline bool ParseNet(const std::string& text, caffe::NetParameter* net) {
  Silence silence;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silence);
  return parser.ParseFromString(text, net);
}

/// Runs a function that may throw what a user of Caffe can catch.
template <typename Function>
void Try(Function function) {
  static const bool quiet = [] {
    FLAGS_minloglevel = google::GLOG_FATAL;
    caffe::Caffe::set_random_seed(1);
    return true;
  }();
  static_cast<void>(quiet);
  try {
    function();
  } catch (const caffe::Error&) {
  }
}

}  // namespace fuzz

#endif  // TESTS_FUZZ_FUZZ_HPP_
