#ifndef SIMULATED_CUDA_HPP_
#define SIMULATED_CUDA_HPP_

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>

/**
 * A CUDA device in software, for tests on machines without a GPU.
 *
 * Caffe's .cu files, compiled for the host, run on it: a kernel is a function
 * that is called once for every thread of the grid, cuBLAS is the host's BLAS,
 * NCCL is a meeting of threads or of processes. All of it is done when the call
 * returns: what it does not show are errors of missing synchronisation between
 * streams.
 *
 * Device memory is closed to the host. Only a kernel or a library function that
 * is given a pointer to an allocation, or a copy, may touch it, and only inside
 * of its bounds. What a real device answers with an error code is answered with
 * it here, and with a line on stderr; what a real device would not notice, or
 * report much later, ends the program with a line that says what happened.
 *
 * Environment:
 *   SIMULATED_CUDA_DEVICES   how many devices there are, 2 if not set
 *   SIMULATED_CUDA_ORDER     forwards, backwards or shuffled
 *   SIMULATED_CUDA_COUNTERS  if set, print the counters when the program ends
 */
namespace simulated_cuda {

/// Which blocks of a grid, and threads of a block, run first. CUDA promises
/// nothing about it, so no result may depend on it. Returns the one before.
enum class Order { kForwards, kBackwards, kShuffled };
Order SetOrder(Order order);

/// How often something was done, and to how many bytes.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

/// What all devices have done since the start or since ResetCounters.
struct Counters {
  std::map<std::string, int64_t> launches;       ///< by name of the kernel
  std::map<std::string, int64_t> library_calls;  ///< by name, as cublasSgemm
  Traffic host_to_device;
  Traffic device_to_host;
  Traffic device_to_device;
  Traffic memsets;

  int64_t TotalLaunches() const;
};
Counters ReadCounters();
void ResetCounters();
/// Print a table of them.
std::ostream& operator<<(std::ostream& out, const Counters& counters);

/// Whether the address is inside of an allocation of a device.
bool IsDeviceMemory(const void* address);
/// How many bytes of a device's memory are allocated.
size_t AllocatedBytes(int device);

}  // namespace simulated_cuda

#endif  // SIMULATED_CUDA_HPP_
