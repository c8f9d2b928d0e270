#include "caffe/bayes/noise.hpp"

#include <algorithm>

// Each loop is compiled for several instruction sets, and the machine picks one
// when the program starts; the numbers are the same from all of them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BAYES_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BAYES_CLONES
#endif

namespace caffe {
namespace bayes {

namespace {

// Blocks of four numbers that one pass of a loop below fills.
const int kBlocks = 16;
const int kChunk = 4 * kBlocks;

BAYES_CLONES void NormalChunks(NoiseKey key, uint64_t draw, uint64_t block,
                               int blocks, float* out) {
  for (int i = 0; i < blocks; ++i) {
    NormalBlock(key, draw, block + i, out + 4 * i);
  }
}

BAYES_CLONES void BitChunks(NoiseKey key, uint64_t draw, uint64_t block,
                            int blocks, uint32_t* out) {
  for (int i = 0; i < blocks; ++i) {
    PhiloxBlock(key, draw, block + i, out + 4 * i);
  }
}

// Fills any range with a function that can only fill whole blocks, through a
// buffer that also turns the numbers into the type asked for.
template <typename Number, typename Out, typename FillBlocks>
void FillRange(uint64_t offset, int n, Out* out, FillBlocks fill_blocks) {
  Number buffer[kChunk];
  while (n > 0) {
    const int skipped = static_cast<int>(offset % 4);
    const int taken = std::min(n, kChunk - skipped);
    fill_blocks(offset / 4, (skipped + taken + 3) / 4, buffer);
    std::copy(buffer + skipped, buffer + skipped + taken, out);
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
  FillRange<float>(offset, n, out,
                   [&](uint64_t block, int blocks, float* buffer) {
                     NormalChunks(key, draw, block, blocks, buffer);
                   });
}

template void FillNormal(const NoiseKey&, uint64_t, uint64_t, int, float*);
template void FillNormal(const NoiseKey&, uint64_t, uint64_t, int, double*);

void FillBits(const NoiseKey& key, uint64_t draw, uint64_t offset, int n,
              uint32_t* out) {
  FillRange<uint32_t>(offset, n, out,
                      [&](uint64_t block, int blocks, uint32_t* buffer) {
                        BitChunks(key, draw, block, blocks, buffer);
                      });
}

}  // namespace bayes
}  // namespace caffe
