// The loops of noise.cpp for one instruction set: see engine/targets.inl. The
// numbers are those of PhiloxBlock and NormalPair, whatever the instruction
// set.

const int kLanes = ENGINE_VECTOR_BYTES / 4;
typedef uint64_t WideWords
    __attribute__((vector_size(ENGINE_VECTOR_BYTES), may_alias));

// The products of the words with even index and `factor`, 64 bits each.
inline WideWords MultiplyEven(WideWords words, uint32_t factor) {
#if ENGINE_VECTOR_BYTES == 64
  return (WideWords)_mm512_mul_epu32((__m512i)words, _mm512_set1_epi32(factor));
#elif ENGINE_VECTOR_BYTES == 32
  return (WideWords)_mm256_mul_epu32((__m256i)words, _mm256_set1_epi32(factor));
#elif defined(__SSE2__)
  return (WideWords)_mm_mul_epu32((__m128i)words, _mm_set1_epi32(factor));
#else
  return (words & 0xFFFFFFFFu) * factor;
#endif
}

// PhiloxBlock of kPortion consecutive blocks: word[k][i] is word k of block i.
//
// A word is the lower half of a 64-bit lane, and the upper half is anything:
// the product of two lower halves is a whole lane, and needs no rearranging.
// Words of blocks with even and with odd index come together at the end.
const int kPortion = 2 * kLanes;

inline void PhiloxPortion(NoiseKey key, uint64_t draw, uint64_t block,
                          uint32_t word[4][kPortion]) {
  for (int v = 0; v < kPortion; v += kLanes) {
    WideWords c[4][2];
    for (int odd = 0; odd < 2; ++odd) {
      for (int i = 0; i < kLanes / 2; ++i) {
        c[0][odd][i] = block + v + 2 * i + odd;
      }
      c[1][odd] = c[0][odd] >> 32;
      c[2][odd] = WideWords{} + draw;
      c[3][odd] = WideWords{} + (draw >> 32);
    }
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const WideWords p0 = MultiplyEven(c[0][odd], 0xD2511F53u);
        const WideWords p1 = MultiplyEven(c[2][odd], 0xCD9E8D57u);
        c[0][odd] = (p1 >> 32) ^ (c[1][odd] ^ k0);
        c[1][odd] = p1;
        c[2][odd] = (p0 >> 32) ^ (c[3][odd] ^ k1);
        c[3][odd] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int k = 0; k < 4; ++k) {
      *reinterpret_cast<WideWords*>(word[k] + v) =
          (c[k][0] & 0xFFFFFFFFu) | (c[k][1] << 32);
    }
  }
}

// `blocks` blocks of four numbers, of which the last may be computed in vain.
void NormalBlocks(NoiseKey key, uint64_t draw, uint64_t block, int blocks,
                  float* out) {
  alignas(64) uint32_t word[4][kPortion];
  alignas(64) float number[4][kPortion];
  const uint32_t turn = HalfTurn(draw);
  for (int done = 0; done < blocks; done += kPortion) {
    PhiloxPortion(key, draw & ~kMirrored, block + done, word);
    for (int i = 0; i < kPortion; ++i) {
      NormalPair(word[0][i], word[1][i] ^ turn, &number[0][i], &number[1][i]);
    }
    for (int i = 0; i < kPortion; ++i) {
      NormalPair(word[2][i], word[3][i] ^ turn, &number[2][i], &number[3][i]);
    }
    const int now = blocks - done < kPortion ? blocks - done : kPortion;
    for (int i = 0; i < now; ++i) {
      for (int k = 0; k < 4; ++k) out[4 * (done + i) + k] = number[k][i];
    }
  }
}

void BitBlocks(NoiseKey key, uint64_t draw, uint64_t block, int blocks,
               uint32_t* out) {
  alignas(64) uint32_t word[4][kPortion];
  const uint32_t flipped = 0u - static_cast<uint32_t>(draw >> 63);
  for (int done = 0; done < blocks; done += kPortion) {
    PhiloxPortion(key, draw & ~kMirrored, block + done, word);
    const int now = blocks - done < kPortion ? blocks - done : kPortion;
    for (int i = 0; i < now; ++i) {
      for (int k = 0; k < 4; ++k)
        out[4 * (done + i) + k] = word[k][i] ^ flipped;
    }
  }
}
