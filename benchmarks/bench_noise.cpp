// Times the noise of one LeNet draw: 431,080 normal numbers on one core. Checks
// the numbers, warms up, then prints the mean +- sd of 200 draws.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "caffe/bayes/noise.hpp"

int main() {
  using caffe::bayes::FillNormal;
  const int kNumbers = 431080, kWarmUp = 20, kRepeats = 200;
  const auto key = caffe::bayes::MakeNoiseKey(1, "fc1", 0);
  std::vector<float> numbers(kNumbers);

  FillNormal(key, 7, 0, kNumbers, numbers.data());
  for (int block = 0; block < kNumbers / 4; ++block) {
    float expected[4];
    caffe::bayes::NormalBlock(key, 7, block, expected);
    for (int i = 0; i < 4; ++i) {
      if (numbers[4 * block + i] != expected[i]) {
        std::fprintf(stderr, "number %d differs from the reference\n",
                     4 * block + i);
        return EXIT_FAILURE;
      }
    }
  }

  double sum = 0, sum_sq = 0;
  for (int draw = -kWarmUp; draw < kRepeats; ++draw) {
    const auto start = std::chrono::steady_clock::now();
    FillNormal(key, draw + kWarmUp, 0, kNumbers, numbers.data());
    const std::chrono::duration<double, std::milli> time =
        std::chrono::steady_clock::now() - start;
    if (draw < 0) continue;
    sum += time.count();
    sum_sq += time.count() * time.count();
  }
  const double mean = sum / kRepeats;
  const double sd = std::sqrt(sum_sq / kRepeats - mean * mean);
  std::printf("noise: %d numbers in %.3f +- %.3f ms on one core\n", kNumbers,
              mean, sd);
}
