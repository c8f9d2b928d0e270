#ifndef CAFFE_ENGINE_LARGE_ARRAYS_HPP_
#define CAFFE_ENGINE_LARGE_ARRAYS_HPP_

// What is worth doing for arrays that do not stay in the cache from one use to
// the next.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace caffe {
namespace engine {

/// Whether a parameter of so many bytes is one of these.
inline bool IsLarge(size_t bytes) { return bytes >= (4 << 20); }

/// Asks for n numbers, to be read or written soon, without waiting for them.
template <typename T>
void Fetch(size_t n, const T* from) {
  for (size_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}
template <typename T>
void FetchToWrite(size_t n, const T* to) {
  for (size_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(to + i, 1);
}

/// Copies n numbers to where they are not read soon: neither is their place
/// read first, as a store to the cache does, nor do they drive others out of
/// it. Other threads may read them after EndStream.
template <typename T>
void StreamCopy(size_t n, const T* from, T* to) {
#ifdef __SSE2__
  const size_t lanes = sizeof(__m128i) / sizeof(T);
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(to + i),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    std::copy(from + i, from + n, to + i);
    return;
  }
#endif
  std::copy(from, from + n, to);
}
inline void EndStream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_LARGE_ARRAYS_HPP_
