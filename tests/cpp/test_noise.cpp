// Named noise: the right generator, the right distribution, and the same bits
// however it is asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "Random123/philox.h"
#include "caffe/bayes/noise.hpp"

namespace caffe {
namespace bayes {

using std::vector;

const uint64_t kDraws[] = {0, 1, 99, 0xFFFFFFFFu, 0x123456789ABCDEFu};

vector<float> Normals(const NoiseKey& key, uint64_t draw, int n) {
  vector<float> numbers(n);
  FillNormal(key, draw, 0, n, numbers.data());
  return numbers;
}

TEST(NoiseTest, PhiloxIsRandom123s) {
  const NoiseKey key = {{0xA4093822u, 0x299F31D0u}};
  for (uint64_t draw : kDraws) {
    for (uint64_t block : {uint64_t(0), uint64_t(7), uint64_t(1) << 40}) {
      uint32_t words[4];
      PhiloxBlock(key, draw, block, words);
      const r123::Philox4x32::ctr_type counter = {
          {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
           static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32)}};
      const r123::Philox4x32::key_type r123_key = {{key.word[0], key.word[1]}};
      const r123::Philox4x32::ctr_type expected =
          r123::Philox4x32()(counter, r123_key);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(expected[i], words[i]);
    }
  }
}

TEST(NoiseTest, KeysOfDifferentNamesDiffer) {
  std::set<std::pair<uint32_t, uint32_t> > keys;
  int names = 0;
  for (uint32_t seed : {0u, 1u, 256u}) {
    for (const char* layer : {"", "conv1", "conv2", "1conv"}) {
      for (uint32_t blob : {0u, 1u, 256u}) {
        const NoiseKey key = MakeNoiseKey(seed, layer, blob);
        keys.insert({key.word[0], key.word[1]});
        ++names;
      }
    }
  }
  EXPECT_EQ(names, keys.size());
}

// The clone of the loop that this machine runs (AVX-512, AVX2 ...) against the
// plain code that this file is compiled to.
TEST(NoiseTest, EveryInstructionSetGivesTheSameBits) {
  const int blocks = 20000;
  const NoiseKey key = MakeNoiseKey(1, "layer", 0);
  const vector<float> numbers = Normals(key, 3, 4 * blocks);
  for (int block = 0; block < blocks; ++block) {
    float expected[4];
    NormalBlock(key, 3, block, expected);
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(expected[i], numbers[4 * block + i]) << "block " << block;
    }
  }
}

TEST(NoiseTest, AnyPartOfADrawIsTheSameNumbers) {
  const int n = 1003;
  const NoiseKey key = MakeNoiseKey(1, "layer", 0);
  const vector<float> whole = Normals(key, 5, n);
  for (int cut : {1, 2, 3, 64, 501, 1002}) {
    vector<float> halves(n);
    std::thread first([&] { FillNormal(key, 5, 0, cut, halves.data()); });
    std::thread second(
        [&] { FillNormal(key, 5, cut, n - cut, halves.data() + cut); });
    first.join();
    second.join();
    EXPECT_EQ(whole, halves) << "cut at " << cut;
  }
}

TEST(NoiseTest, DoubleHoldsTheSameNumbersAsFloat) {
  const NoiseKey key = MakeNoiseKey(1, "layer", 0);
  const vector<float> single = Normals(key, 5, 1000);
  vector<double> numbers(1000);
  FillNormal(key, 5, 0, 1000, numbers.data());
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(single[i], numbers[i]);
}

TEST(NoiseTest, BitsAreThePhiloxWords) {
  const NoiseKey key = MakeNoiseKey(1, "drop", 0);
  uint32_t bits[7], words[4];
  FillBits(key, 2, 3, 7, bits);
  for (int i = 0; i < 7; ++i) {
    PhiloxBlock(key, 2, (3 + i) / 4, words);
    EXPECT_EQ(words[(3 + i) % 4], bits[i]);
  }
}

TEST(NoiseTest, MirrorImagesHaveTheOtherSign) {
  const int n = 1003;
  const NoiseKey key = MakeNoiseKey(1, "layer", 0);
  for (uint64_t draw : kDraws) {
    const vector<float> numbers = Normals(key, draw, n);
    const vector<float> mirrored = Normals(key, draw + kMirrored, n);
    vector<uint32_t> words(n), flipped(n);
    FillBits(key, draw, 0, n, words.data());
    FillBits(key, draw + kMirrored, 0, n, flipped.data());
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(-numbers[i], mirrored[i])
          << "draw " << draw << ", number " << i;
      ASSERT_EQ(~words[i], flipped[i]) << "draw " << draw << ", word " << i;
    }
    // As the loops above, so what kernels call.
    float block[4];
    uint32_t bits[4];
    NormalBlock(key, draw + kMirrored, 7, block);
    BitBlock(key, draw + kMirrored, 7, bits);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(mirrored[28 + i], block[i]);
      EXPECT_EQ(flipped[28 + i], bits[i]);
    }
  }
}

// Moments of the standard normal: 0, 1, 0, 3, each within 5 standard errors.
TEST(NoiseTest, MomentsAreNormal) {
  const int n = 1 << 20;
  for (uint64_t draw : kDraws) {
    const vector<float> x = Normals(MakeNoiseKey(7, "layer", 0), draw, n);
    double moment[5] = {};
    for (double value : x) {
      for (int k = 1; k <= 4; ++k) moment[k] += std::pow(value, k) / n;
    }
    EXPECT_NEAR(0, moment[1], 5 * std::sqrt(1. / n));
    EXPECT_NEAR(1, moment[2], 5 * std::sqrt(2. / n));
    EXPECT_NEAR(0, moment[3], 5 * std::sqrt(15. / n));
    EXPECT_NEAR(3, moment[4], 5 * std::sqrt(96. / n));
  }
}

// Kolmogorov-Smirnov: the greatest distance from the normal distribution
// function exceeds 1.95 / sqrt(n) once in a thousand samples.
TEST(NoiseTest, DistributionIsNormal) {
  const int n = 1 << 20;
  vector<float> x = Normals(MakeNoiseKey(8, "layer", 0), 0, n);
  std::sort(x.begin(), x.end());
  double distance = 0;
  for (int i = 0; i < n; ++i) {
    const double expected = 0.5 * std::erfc(-x[i] / std::sqrt(2.));
    distance = std::max(distance, std::fabs(expected - (i + 0.5) / n));
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(n));
  // The tails are there: beyond 4 lie 6.3e-5 of the numbers, 66 +- 8 of 2^20.
  const int beyond_4 = std::count_if(
      x.begin(), x.end(), [](float value) { return std::fabs(value) > 4; });
  EXPECT_NEAR(66, beyond_4, 5 * 8.2);
}

TEST(NoiseTest, DrawsLayersBlobsSeedsAndNeighboursAreUncorrelated) {
  const int n = 1 << 20;
  const vector<float> x = Normals(MakeNoiseKey(1, "a", 0), 0, n + 4);
  const auto correlation = [&](const float* y) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += double(x[i]) * y[i] / n;
    return sum;
  };
  const double limit = 5 / std::sqrt(n);
  for (int lag = 1; lag <= 4; ++lag) {
    EXPECT_NEAR(0, correlation(x.data() + lag), limit) << "lag " << lag;
  }
  EXPECT_NEAR(0, correlation(Normals(MakeNoiseKey(1, "a", 0), 1, n).data()),
              limit);
  EXPECT_NEAR(0, correlation(Normals(MakeNoiseKey(1, "a", 1), 0, n).data()),
              limit);
  EXPECT_NEAR(0, correlation(Normals(MakeNoiseKey(1, "b", 0), 0, n).data()),
              limit);
  EXPECT_NEAR(0, correlation(Normals(MakeNoiseKey(2, "a", 0), 0, n).data()),
              limit);
}

// No two words may make a number that is not finite.
TEST(NoiseTest, ExtremeWordsGiveFiniteNumbers) {
  for (uint32_t radius : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu}) {
    for (uint32_t angle : {0u, 1u, 0x3FFFFFFFu, 0x40000000u, 0xFFFFFFFFu}) {
      float x, y;
      NormalPair(radius, angle, &x, &y);
      EXPECT_TRUE(std::isfinite(x) && std::isfinite(y));
      EXPECT_LE(std::hypot(x, y), 6.7f);
    }
  }
}

}  // namespace bayes
}  // namespace caffe
