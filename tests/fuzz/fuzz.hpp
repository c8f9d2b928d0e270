#ifndef TESTS_FUZZ_FUZZ_HPP_
#define TESTS_FUZZ_FUZZ_HPP_

// What the fuzz targets share. libFuzzer calls a target with ever new bytes; a
// crash, a hang or a finding of a sanitizer is a defect, an error is not.

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <new>
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

/// Runs a function that may throw what pycaffe makes a caffe.Error of.
template <typename Function>
void Try(Function function) {
  FLAGS_minloglevel = google::GLOG_FATAL;
  // An input does the same whatever came before it.
  caffe::Caffe::set_random_seed(1);
  try {
    function();
  } catch (const caffe::Error&) {
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace fuzz

#endif  // TESTS_FUZZ_FUZZ_HPP_
