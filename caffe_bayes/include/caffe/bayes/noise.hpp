#ifndef CAFFE_BAYES_NOISE_HPP_
#define CAFFE_BAYES_NOISE_HPP_

// Noise that has a name. Every number is a pure function of
//   (seed, layer, blob, draw, index),
// so a draw is the same network for any batch size, number of threads, order of
// evaluation or machine.
//
// Philox4x32-10 (Salmon et al., 2011) turns (key, counter) into four words of
// 32 random bits. The key is a hash of (seed, layer, blob); the counter is
// (index / 4, draw), each of 64 bits, low word first. Box-Muller turns the four
// words into four normal numbers. Only IEEE + - * / and sqrt are used, in a
// fixed order and without fused multiply-add, so the bits do not depend on the
// instruction set. The upper bit of the draw mirrors it (kMirrored). Compile
// what includes this file's arithmetic with -ffp-contract=off.

#include <cstdint>
#include <cstring>
#include <string>

#include "caffe/bayes/host_device.hpp"

namespace caffe {
namespace bayes {

/// Draw k + kMirrored is the mirror image of draw k. Its normal numbers are
/// those of draw k with the other sign, its words have all bits flipped. It is
/// as likely as draw k, and the mean prediction of the two is mostly nearer to
/// that of all draws than the mean of two independent ones.
const uint64_t kMirrored = uint64_t{1} << 63;

/// The name of one stream of noise: one blob of one layer under one seed.
struct NoiseKey {
  uint32_t word[2] = {};
};

/// FNV-1a, 64 bits, over seed and blob (low byte first) and the layer's name.
NoiseKey MakeNoiseKey(uint32_t seed, const std::string& layer, uint32_t blob);

/// out[i] = number offset + i of the draw, standard normal, for 0 <= i < n.
template <typename Dtype>
void FillNormal(const NoiseKey& key, uint64_t draw, uint64_t offset, int n,
                Dtype* out);

/// out[i] = word offset + i of the draw, uniform over 32 bits, for 0 <= i < n.
void FillBits(const NoiseKey& key, uint64_t draw, uint64_t offset, int n,
              uint32_t* out);

/// The four random words of one block of a draw that is no mirror image.
BAYES_HD void PhiloxBlock(const NoiseKey& key, uint64_t draw, uint64_t block,
                          uint32_t words[4]) {
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(draw);
  uint32_t c3 = static_cast<uint32_t>(draw >> 32);
  uint32_t k0 = key.word[0];
  uint32_t k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

/// Natural logarithm of u in (0, 1], good to about one part in 10^7.
BAYES_HD float LogOfUnit(float u) {
  int32_t bits;
  memcpy(&bits, &u, sizeof(bits));
  // u = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  const int32_t exponent = (bits - 0x3F3504F3) >> 23;
  // The product, not a shift: exponent is negative.
  const int32_t mantissa_bits = bits - exponent * (1 << 23);
  float mantissa;
  memcpy(&mantissa, &mantissa_bits, sizeof(mantissa));
  // ln x = 2 artanh((x - 1) / (x + 1)), by its Taylor series.
  const float s = (mantissa - 1.0f) / (mantissa + 1.0f);
  const float z = s * s;
  float series = 2.0f / 9.0f;
  series = series * z + 2.0f / 7.0f;
  series = series * z + 2.0f / 5.0f;
  series = series * z + 2.0f / 3.0f;
  series = series * z + 2.0f;
  return static_cast<float>(exponent) * 0.693147181f + s * series;
}

/// Box-Muller: two random words to two independent standard normal numbers.
BAYES_HD void NormalPair(uint32_t radius_word, uint32_t angle_word, float* x,
                         float* y) {
  // Uniform on (0, 1]: never 0, whose logarithm would be infinite.
  const float u = static_cast<float>(static_cast<int32_t>(radius_word >> 1)) *
                      4.65661287e-10f +  // 2^-31
                  2.32830644e-10f;       // 2^-32
  const float radius = sqrtf(-2.0f * LogOfUnit(u));
  // The two high bits name the quadrant, the others the angle within it, which
  // is taken from -pi/4 to pi/4, where the Taylor series below are short.
  const uint32_t quadrant = angle_word >> 30;
  const float angle =
      static_cast<float>(static_cast<int32_t>(angle_word << 2)) *
      3.65723694e-10f;  // pi/2 * 2^-32
  const float z = angle * angle;
  float sine = 1.0f / 362880.0f;
  sine = sine * z - 1.0f / 5040.0f;
  sine = sine * z + 1.0f / 120.0f;
  sine = sine * z - 1.0f / 6.0f;
  sine = (sine * z + 1.0f) * angle;
  float cosine = 1.0f / 40320.0f;
  cosine = cosine * z - 1.0f / 720.0f;
  cosine = cosine * z + 1.0f / 24.0f;
  cosine = cosine * z - 1.0f / 2.0f;
  cosine = cosine * z + 1.0f;
  const bool odd = quadrant & 1;
  const float signed_radius = quadrant & 2 ? -radius : radius;
  *x = signed_radius * (odd ? -sine : cosine);
  *y = signed_radius * (odd ? cosine : sine);
}

/// What turns an angle word by half a circle if the draw is a mirror image:
/// then NormalPair gives both numbers with the other sign.
BAYES_HD uint32_t HalfTurn(uint64_t draw) {
  return static_cast<uint32_t>(draw >> 63) << 31;
}

/// Numbers 4 * block to 4 * block + 3 of a draw.
BAYES_HD void NormalBlock(const NoiseKey& key, uint64_t draw, uint64_t block,
                          float numbers[4]) {
  uint32_t words[4];
  PhiloxBlock(key, draw & ~kMirrored, block, words);
  const uint32_t turn = HalfTurn(draw);
  NormalPair(words[0], words[1] ^ turn, &numbers[0], &numbers[1]);
  NormalPair(words[2], words[3] ^ turn, &numbers[2], &numbers[3]);
}

/// Words 4 * block to 4 * block + 3 of a draw.
BAYES_HD void BitBlock(const NoiseKey& key, uint64_t draw, uint64_t block,
                       uint32_t words[4]) {
  PhiloxBlock(key, draw & ~kMirrored, block, words);
  const uint32_t flipped = 0u - static_cast<uint32_t>(draw >> 63);
  for (int k = 0; k < 4; ++k) words[k] ^= flipped;
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_NOISE_HPP_
