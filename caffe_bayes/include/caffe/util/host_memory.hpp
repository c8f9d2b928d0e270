#ifndef CAFFE_UTIL_HOST_MEMORY_HPP_
#define CAFFE_UTIL_HOST_MEMORY_HPP_

#include <cstddef>

namespace caffe {

/// Refuses a size that the machine does not have. Linux promises it and ends
/// the process once it is used.
void CheckHostMemory(size_t bytes);

}  // namespace caffe

#endif  // CAFFE_UTIL_HOST_MEMORY_HPP_
