#ifndef SIMULATED_CUDA_DEVICE_CODE_HPP_
#define SIMULATED_CUDA_DEVICE_CODE_HPP_

// What nvcc knows without an include, for .cu files: convert_launches.py lets
// them include it.

// Device code calls abs, min, signbit and so on without std::.
#include <math.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"

// The threads of a block run in one thread of the host, block after block.
#define __shared__ static thread_local

// __thread, as thread_local would ask at each use if they are initialised.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread uint3 blockDim;
extern __thread uint3 gridDim;

using std::max;
using std::min;

template <typename To, typename From>
inline To SimulatedBits(From from) {
  static_assert(sizeof(To) == sizeof(From), "not the same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline int __float_as_int(float x) { return SimulatedBits<int>(x); }
inline unsigned int __float_as_uint(float x) {
  return SimulatedBits<unsigned int>(x);
}
inline float __int_as_float(int x) { return SimulatedBits<float>(x); }
inline float __uint_as_float(unsigned int x) { return SimulatedBits<float>(x); }
inline long long __double_as_longlong(double x) {
  return SimulatedBits<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return SimulatedBits<double>(x);
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>((static_cast<uint64_t>(a) * b) >> 32);
}

// The threads of a grid do not run at the same time, so these are plain.
template <typename T>
inline T atomicAdd(T* address, T value) {
  const T old = *address;
  *address += value;
  return old;
}
inline unsigned long long atomicCAS(unsigned long long* address,
                                    unsigned long long compare,
                                    unsigned long long value) {
  const unsigned long long old = *address;
  if (old == compare) *address = value;
  return old;
}

// ---- Launches ---------------------------------------------------------------

namespace simulated_cuda {

/// One launch of a kernel, whatever its arguments.
class Grid {
 public:
  /// `expression` is the text before <<<.
  Grid(const char* expression, dim3 grid, dim3 block);
  ~Grid();
  /// False if no device can launch it, as cudaPeekAtLastError will tell.
  bool valid() const { return operation_ != nullptr; }
  /// A pointer must be one to memory of this device, or null. So must those in
  /// a structure; its padding may hold anything, such as half of a pointer.
  template <typename T>
  void Argument(T value) {
    __builtin_clear_padding(&value);
    ArgumentOfBytes(&value, sizeof(T), false);
  }
  template <typename T>
  void Argument(T* const& value) {
    ArgumentOfBytes(&value, sizeof(T*), true);
  }
  /// Call it for each thread.
  void Run(void (*call)(const void*), const void* context);

 private:
  void ArgumentOfBytes(const void* value, size_t size, bool is_pointer);

  const char* name_;
  dim3 grid_;
  dim3 block_;
  class Operation* operation_;
  int arguments_;
};

/// A kernel with the configuration that is in <<< >>>.
template <typename Kernel>
class Launcher {
 public:
  /// Dynamic shared memory is not simulated: its size can only be a literal 0.
  /// A stream has no effect.
  Launcher(const char* expression, Kernel kernel, dim3 grid, dim3 block,
           std::nullptr_t shared_memory = nullptr,
           cudaStream_t stream = nullptr)
      : expression_(expression), kernel_(kernel), grid_(grid), block_(block) {}

  template <typename... Arguments>
  void operator()(Arguments... arguments) const {
    Grid grid(expression_, grid_, block_);
    if (!grid.valid()) return;
    (grid.Argument(arguments), ...);
    const auto call = [&] { kernel_(arguments...); };
    typedef decltype(call) Call;
    grid.Run([](const void* self) { (*static_cast<Call*>(self))(); }, &call);
  }

 private:
  const char* expression_;
  Kernel kernel_;
  dim3 grid_;
  dim3 block_;
};

void Barrier(const char* file, int line);

}  // namespace simulated_cuda

// What convert_launches.py makes of kernel<<<...>>>: a macro, since launches
// are also in macros that have yet to paste the name of the kernel together.
#define SIMULATED_CUDA_LAUNCH(kernel, configuration)                         \
  ::simulated_cuda::Launcher(                                                \
      #kernel,                                                               \
      [](auto... arguments) { SIMULATED_CUDA_OPENED kernel(arguments...); }, \
      SIMULATED_CUDA_OPENED configuration)
#define SIMULATED_CUDA_OPENED(...) __VA_ARGS__

inline void __syncthreads(const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  simulated_cuda::Barrier(file, line);
}

#endif  // SIMULATED_CUDA_DEVICE_CODE_HPP_
