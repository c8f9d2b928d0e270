#include "caffe/engine/kernels.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "caffe/engine/machine.hpp"

namespace caffe {
namespace engine {

namespace {

inline double Exp(double x) { return std::exp(x); }
inline double ExpMinus1(double x) { return std::expm1(x); }

// e^x = power (1 + rest) for -87 <= x <= 0, in operations that have vectors:
// 2^n e^r with |r| <= ln(2)/2, and e^r by its Taylor series.
struct PowerAndRest {
  float power, rest;
};
inline PowerAndRest ExpParts(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  // The last bits of `shifted` are n, also where x is NaN and no int.
  uint32_t power_bits;
  std::memcpy(&power_bits, &shifted, sizeof(power_bits));
  power_bits = (power_bits + 127) << 23;
  float power;
  std::memcpy(&power, &power_bits, sizeof(power));
  return {power, series * r};
}

// e^x for x <= 0. Good to about two units in the last place.
inline float Exp(float x) {
  const PowerAndRest parts = ExpParts(x < -87.0f ? -87.0f : x);
  // Not by comparison alone: NaN must stay NaN.
  return x < -87.0f ? 0.0f : (parts.rest + 1.0f) * parts.power + (x - x);
}

// e^x - 1 for x <= 0, as good also where x is small.
inline float ExpMinus1(float x) {
  const PowerAndRest parts = ExpParts(x < -87.0f ? -87.0f : x);
  return x < -87.0f ? -1.0f
                    : parts.rest * parts.power + (parts.power - 1.0f) + (x - x);
}

#define ENGINE_LOOPS "caffe/engine/kernels.inl"
#include "caffe/engine/targets.inl"

}  // namespace

template <typename T>
const Kernels<T>& BestKernels() {
  static const Kernels<T>& best = ENGINE_CHOOSE(All<T>());
  return best;
}

template const Kernels<float>& BestKernels();
template const Kernels<double>& BestKernels();

}  // namespace engine
}  // namespace caffe
