#ifndef SIMULATED_CUDA_DEVICE_HPP_
#define SIMULATED_CUDA_DEVICE_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "simulated_cuda.hpp"

// What the parts of the simulator share: see memory.cpp.
namespace simulated_cuda {

/// End the program because of an error in the simulated one.
[[noreturn]] void Die(const std::string& message);
/// Say on stderr why a call is about to return an error code.
void Complain(const std::string& message);

int DeviceCount();
/// The device that this thread has chosen.
int CurrentDevice();

/// Change the counters while no one else does.
void Count(const std::function<void(Counters*)>& change);

/**
 * Something that a device does: while it exists, the allocations that it was
 * given are open to this thread's reads and writes.
 */
class Operation {
 public:
  /// The name is for messages, and must outlive the operation.
  explicit Operation(const char* name);
  /// Closes the allocations, and dies if one was written outside its bounds.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Open the allocation of an argument, which must be memory of the current
  /// device with that many bytes behind the pointer. Arguments count from 1.
  void Open(const void* pointer, size_t bytes, int argument);
  /// The same for a pointer that may be null.
  void OpenIfSet(const void* pointer, int argument);
  /// Open the allocations of all pointers in a structure.
  void OpenInside(const void* structure, size_t size, int argument);
  /// Open the allocation of any device, if the address is inside of one.
  void OpenAnywhere(const void* pointer);

 private:
  void OpenAllocation(uintptr_t address, int argument);

  const char* outer_name_;
  std::vector<uintptr_t> opened_;
};

}  // namespace simulated_cuda

#endif  // SIMULATED_CUDA_DEVICE_HPP_
