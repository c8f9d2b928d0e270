// cuRAND by a generator of our own.
#include "curand.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "device.hpp"

struct SimulatedCurand {
  int device;
  uint64_t seed;
  uint64_t position;  ///< of the next number, counted from the offset 0

  /// The number at the position, which moves on: splitmix64 of the counter,
  /// with the seed scrambled first so that near seeds are far apart.
  uint64_t Next() { return Scramble(Scramble(seed) + position++); }
  /// In (0, 1], of 53 bits.
  double NextUniform() { return std::ldexp((Next() >> 11) + 1.0, -53); }

 private:
  static uint64_t Scramble(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
};

namespace simulated_cuda {
namespace {

template <typename T, typename Draw>
curandStatus_t Fill(const char* name, curandGenerator_t generator, T* out,
                    size_t count, Draw draw) {
  if (generator == nullptr) {
    Die(std::string(name) + ": the generator is null");
  }
  if (generator->device != CurrentDevice()) {
    Die(std::string(name) + ": the generator was made for device " +
        std::to_string(generator->device) + ", but the current one is " +
        std::to_string(CurrentDevice()));
  }
  Count([name](Counters* counters) { ++counters->library_calls[name]; });
  Operation operation(name);
  if (count > 0) operation.Open(out, sizeof(T) * count, 2);
  for (size_t i = 0; i < count; ++i) out[i] = draw();
  return CURAND_STATUS_SUCCESS;
}

/// Box and Muller's pairs.
template <typename T>
curandStatus_t FillNormal(const char* name, curandGenerator_t generator, T* out,
                          size_t count, T mean, T stddev) {
  if (count % 2 != 0) {
    Complain(std::string(name) + ": the count " + std::to_string(count) +
             " is not even");
    return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
  }
  double radius = 0, angle = 0;
  bool second = false;
  return Fill(name, generator, out, count, [&]() -> T {
    if (!second) {
      radius = std::sqrt(-2 * std::log(generator->NextUniform()));
      angle = 2 * M_PI * generator->NextUniform();
    }
    const double draw = radius * (second ? std::sin(angle) : std::cos(angle));
    second = !second;
    return static_cast<T>(mean + stddev * draw);
  });
}

}  // namespace
}  // namespace simulated_cuda

using simulated_cuda::Fill;
using simulated_cuda::FillNormal;

curandStatus_t curandCreateGenerator(curandGenerator_t* generator,
                                     curandRngType_t type) {
  if (simulated_cuda::DeviceCount() == 0) {
    return CURAND_STATUS_INITIALIZATION_FAILED;
  }
  if (type != CURAND_RNG_PSEUDO_DEFAULT) return CURAND_STATUS_TYPE_ERROR;
  *generator = new SimulatedCurand{simulated_cuda::CurrentDevice(), 0, 0};
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
  delete generator;
  return CURAND_STATUS_SUCCESS;
}

// cuRAND does not go back to the start with a new seed; the offset does.
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                  unsigned long long seed) {
  generator->seed = seed;
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator,
                                        unsigned long long offset) {
  generator->position = offset;
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned int* out,
                              size_t count) {
  return Fill(__func__, generator, out, count, [generator] {
    return static_cast<unsigned int>(generator->Next() >> 32);
  });
}

curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out,
                                     size_t count) {
  return Fill(__func__, generator, out, count, [generator] {
    return static_cast<float>(generator->NextUniform());
  });
}

curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator,
                                           double* out, size_t count) {
  return Fill(__func__, generator, out, count,
              [generator] { return generator->NextUniform(); });
}

curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* out,
                                    size_t count, float mean, float stddev) {
  return FillNormal(__func__, generator, out, count, mean, stddev);
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator,
                                          double* out, size_t count,
                                          double mean, double stddev) {
  return FillNormal(__func__, generator, out, count, mean, stddev);
}
