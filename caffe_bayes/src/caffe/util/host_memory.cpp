#include "caffe/util/host_memory.hpp"

#include <fstream>
#include <string>

#include "caffe/common.hpp"

namespace caffe {

namespace {

// What is smaller is not asked for: reading the system's file takes longer than
// most allocations.
const size_t kAskedBytes = size_t(1) << 30;

// What the system says it can give, or 0 if it says nothing.
size_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  size_t available = 0;
  std::string name, unit;
  size_t kilobytes = 0;
  while (file >> name >> kilobytes && std::getline(file, unit)) {
    if (name == "MemAvailable:" || name == "SwapFree:") {
      available += kilobytes << 10;
    }
  }
  return available;
}

}  // namespace

void CheckHostMemory(size_t bytes) {
  if (bytes < kAskedBytes) return;
  const size_t available = AvailableBytes();
  CHECK(available == 0 || bytes <= available)
      << "out of memory: a blob of " << bytes << " bytes is needed, but only "
      << available << " bytes are available";
}

}  // namespace caffe
