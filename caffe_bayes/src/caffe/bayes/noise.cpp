#include "caffe/bayes/noise.hpp"

#include <algorithm>
#include <type_traits>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "caffe/engine/machine.hpp"

namespace caffe {
namespace bayes {

namespace {

#define ENGINE_LOOPS "caffe/bayes/noise.inl"
#include "caffe/engine/targets.inl"

// Fills any range with a function that can only fill whole blocks: what begins
// or ends within one, and what is not of type Number, goes through a buffer.
template <typename Number, typename Out, typename FillBlocks>
void FillRange(uint64_t offset, int n, Out* out, FillBlocks fill_blocks) {
  const int kBuffer = 1024;
  Number buffer[kBuffer];
  while (n > 0) {
    const int skipped = static_cast<int>(offset % 4);
    int taken = std::min(n, kBuffer - skipped);
    if (std::is_same<Number, Out>::value && skipped == 0 && n >= 4) {
      taken = n - n % 4;
      fill_blocks(offset / 4, taken / 4, reinterpret_cast<Number*>(out));
    } else {
      fill_blocks(offset / 4, (skipped + taken + 3) / 4, buffer);
      std::copy(buffer + skipped, buffer + skipped + taken, out);
    }
    out += taken;
    offset += taken;
    n -= taken;
  }
}

}  // namespace

NoiseKey MakeNoiseKey(uint32_t seed, const std::string& layer, uint32_t blob) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto add_byte = [&hash](unsigned char byte) {
    hash = (hash ^ byte) * 0x100000001B3u;
  };
  for (uint32_t number : {seed, blob}) {
    for (int shift = 0; shift < 32; shift += 8) add_byte(number >> shift);
  }
  for (char letter : layer) add_byte(letter);
  return {{static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)}};
}

template <typename Dtype>
void FillNormal(const NoiseKey& key, uint64_t draw, uint64_t offset, int n,
                Dtype* out) {
  static const auto fill = ENGINE_CHOOSE(NormalBlocks);
  FillRange<float>(offset, n, out, [&](uint64_t block, int blocks, float* to) {
    fill(key, draw, block, blocks, to);
  });
}

template void FillNormal(const NoiseKey&, uint64_t, uint64_t, int, float*);
template void FillNormal(const NoiseKey&, uint64_t, uint64_t, int, double*);

void FillBits(const NoiseKey& key, uint64_t draw, uint64_t offset, int n,
              uint32_t* out) {
  static const auto fill = ENGINE_CHOOSE(BitBlocks);
  FillRange<uint32_t>(offset, n, out,
                      [&](uint64_t block, int blocks, uint32_t* to) {
                        fill(key, draw, block, blocks, to);
                      });
}

}  // namespace bayes
}  // namespace caffe
