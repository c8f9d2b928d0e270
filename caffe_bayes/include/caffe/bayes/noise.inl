// The loops of noise.cpp for one instruction set: see engine/targets.inl. The
// numbers are those of PhiloxBlock and NormalPair, whatever the instruction
// set.

const int kLanes = ENGINE_VECTOR_BYTES / 4;
typedef uint32_t Words
    __attribute__((vector_size(ENGINE_VECTOR_BYTES), may_alias));
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

// The upper and lower halves of the products of words and `factor`.
inline void MultiplyWords(Words words, uint32_t factor, Words* high,
                          Words* low) {
  const uint64_t kHigh = 0xFFFFFFFF00000000u;
  const WideWords even = MultiplyEven((WideWords)words, factor);
  const WideWords odd = MultiplyEven((WideWords)words >> 32, factor);
  *high = (Words)((even >> 32) | (odd & kHigh));
  *low = (Words)((even & ~kHigh) | (odd << 32));
}

// PhiloxBlock of kPortion consecutive blocks: word[k][i] is word k of block i.
const int kVectors = 2;
const int kPortion = kVectors * kLanes;

inline void PhiloxPortion(NoiseKey key, uint64_t draw, uint64_t block,
                          uint32_t word[4][kPortion]) {
  Words c[4][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t counter = block + v * kLanes + i;
      c[0][v][i] = static_cast<uint32_t>(counter);
      c[1][v][i] = static_cast<uint32_t>(counter >> 32);
    }
    c[2][v] = Words{} + static_cast<uint32_t>(draw);
    c[3][v] = Words{} + static_cast<uint32_t>(draw >> 32);
  }
  uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Words high0, low0, high2, low2;
      MultiplyWords(c[0][v], 0xD2511F53u, &high0, &low0);
      MultiplyWords(c[2][v], 0xCD9E8D57u, &high2, &low2);
      c[0][v] = high2 ^ c[1][v] ^ k0;
      c[1][v] = low2;
      c[2][v] = high0 ^ c[3][v] ^ k1;
      c[3][v] = low0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int k = 0; k < 4; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Words*>(word[k] + v * kLanes) = c[k][v];
    }
  }
}

// `blocks` blocks of four numbers, of which the last may be computed in vain.
void NormalBlocks(NoiseKey key, uint64_t draw, uint64_t block, int blocks,
                  float* out) {
  alignas(64) uint32_t word[4][kPortion];
  alignas(64) float number[4][kPortion];
  for (int done = 0; done < blocks; done += kPortion) {
    PhiloxPortion(key, draw, block + done, word);
    for (int i = 0; i < kPortion; ++i) {
      NormalPair(word[0][i], word[1][i], &number[0][i], &number[1][i]);
    }
    for (int i = 0; i < kPortion; ++i) {
      NormalPair(word[2][i], word[3][i], &number[2][i], &number[3][i]);
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
  for (int done = 0; done < blocks; done += kPortion) {
    PhiloxPortion(key, draw, block + done, word);
    const int now = blocks - done < kPortion ? blocks - done : kPortion;
    for (int i = 0; i < now; ++i) {
      for (int k = 0; k < 4; ++k) out[4 * (done + i) + k] = word[k][i];
    }
  }
}
