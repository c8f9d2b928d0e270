// Which GPU there is, and what a thread has of it.

#include <gtest/gtest.h>

#include <boost/thread.hpp>
#include <string>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/common.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/util/math_functions.hpp"
#include "expect_error.hpp"

namespace caffe {

#ifdef CPU_ONLY

TEST(DeviceTest, ThereIsNoneWithoutCuda) {
  EXPECT_ERROR(Caffe::RequireDevice(),
               "^no CUDA device 0: this Caffe was built without CUDA");
  EXPECT_ERROR(Caffe::SetDevice(2), "^no CUDA device 2: ");
}

#else

TEST(DeviceTest, NumberThatIsTooHighOrLow) {
  const int count = Caffe::RequireDevice();
  const string there_are = "the machine has " + std::to_string(count) + ", n";
  for (int device : {count, -1}) {
    const string expected =
        "^no CUDA device " + std::to_string(device) + ": " + there_are;
    EXPECT_ERROR(Caffe::RequireDevice(device), expected);
    EXPECT_ERROR(Caffe::SetDevice(device), expected);
  }
}

// Numbers of cuRAND after set_random_seed, in a thread that has not used it
// before, or has.
static vector<float> Gaussians(unsigned int seed, bool used) {
  vector<float> numbers(64);
  boost::thread([&] {
    Blob<float> blob(vector<int>(1, numbers.size()));
    const auto draw = [&] {
      caffe_gpu_rng_gaussian<float>(blob.count(), 0, 1,
                                    blob.mutable_gpu_data());
    };
    if (used) draw();
    Caffe::set_random_seed(seed);
    draw();
    numbers.assign(blob.cpu_data(), blob.cpu_data() + blob.count());
  }).join();
  return numbers;
}

TEST(DeviceTest, SeedHoldsForTheGeneratorThatIsMadeAfterIt) {
  const vector<float> numbers = Gaussians(7, false);
  EXPECT_EQ(numbers, Gaussians(7, false));
  EXPECT_EQ(numbers, Gaussians(7, true));
  EXPECT_NE(numbers, Gaussians(8, false));
}

#endif  // CPU_ONLY

}  // namespace caffe
