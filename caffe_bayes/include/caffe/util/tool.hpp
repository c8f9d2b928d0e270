#ifndef CAFFE_UTIL_TOOL_HPP_
#define CAFFE_UTIL_TOOL_HPP_

#include <exception>
#include <iostream>

#include "caffe/util/printable.hpp"

namespace caffe {

/// Runs a tool; an error in it is one line on stderr, and exit code 1.
inline int RunTool(const char* name, int (*run)(int, char**), int argc,
                   char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << name << ": error: " << Printable(error.what()) << std::endl;
    return 1;
  }
}

}  // namespace caffe

#endif  // CAFFE_UTIL_TOOL_HPP_
