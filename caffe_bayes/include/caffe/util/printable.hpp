#ifndef CAFFE_UTIL_PRINTABLE_HPP_
#define CAFFE_UTIL_PRINTABLE_HPP_

// Names in files of others must not control the terminal that they are printed
// on.

#include <string>

namespace caffe {

/// The text with control characters, and bytes that are no UTF-8, written as
/// `\x1b`. New lines and tabs stay. python/bayescaffe/common/printing.py does
/// the same.
std::string Printable(const std::string& text);

/// From now on, what C functions and glog write to stderr is printable.
void MakeStderrPrintable();

}  // namespace caffe

#endif  // CAFFE_UTIL_PRINTABLE_HPP_
