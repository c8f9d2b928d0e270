// Limits: sizes in 64 bits, and what is refused before anything is made of it.
// tests/python/test_limits.py has the fields, as a prototxt's user meets them.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <climits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/data_transformer.hpp"
#include "caffe/error.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/proto/caffe.pb.h"
#include "caffe/util/checks.hpp"
#include "caffe/util/host_memory.hpp"
#include "caffe/util/limits.hpp"
#include "caffe/util/upgrade_proto.hpp"
#include "caffe/util/window.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

// The number of places of a window, by trying them.
int CountPlaces(int input, const Window& window) {
  int places = 0;
  const int extent = window.dilation * (window.kernel - 1) + 1;
  for (int begin = -window.pad; begin + extent <= input + window.pad;
       begin += window.stride) {
    ++places;
  }
  return places;
}

}  // namespace

TEST(LimitsTest, WindowsAreCounted) {
  for (int input : {1, 5, 6, 7}) {
    for (int kernel : {1, 2, 3}) {
      for (int stride : {1, 2, 3}) {
        for (int dilation : {1, 2}) {
          const Window window = {0, kernel, 2, stride, dilation};
          EXPECT_EQ(CountPlaces(input, window), ConvolvedSize(input, window));
          // A deconvolution gives back the pixels that the windows reached.
          const int reached = (CountPlaces(input, window) - 1) * stride +
                              dilation * (kernel - 1) + 1 - 4;
          if (reached < 1) continue;
          EXPECT_EQ(reached,
                    DeconvolvedSize(CountPlaces(input, window), window));
          EXPECT_LE(reached, input);
          EXPECT_GT(reached, input - stride);
        }
      }
    }
  }
}

TEST(LimitsTest, WindowsDoNotOverflow) {
  const int longest = 1 << 24;
  EXPECT_ERROR(ConvolvedSize(6, {1, longest, 0, 1, longest}),
               "larger than the image along spatial axis 1: kernel_size is "
               "16777216, with dilation 16777216 it covers 281474959933441");
  EXPECT_ERROR(ConvolvedSize(6, {0, 3, INT_MAX, 1, 1}), "pad is 2147483647");
  EXPECT_ERROR(DeconvolvedSize(1 << 20, {0, 3, 0, longest, 1}),
               "would have 17592169267203 pixels along spatial axis 0");
  EXPECT_ERROR(CheckPooling(INT_MAX, {0, 3, 2, 1, 1}, true), "pad is 2");
  for (const Window& wrong : {Window{0, 0, 0, 1, 1}, Window{0, 1, -1, 1, 1},
                              Window{0, 1, 0, 0, 1}, Window{0, 1, 0, 1, 0}}) {
    EXPECT_ERROR(ConvolvedSize(6, wrong), "must be [01] or more");
    EXPECT_ERROR(DeconvolvedSize(6, wrong), "must be [01] or more");
    EXPECT_ERROR(CheckPooling(6, wrong, true), "must be [01] or more");
  }
  EXPECT_ERROR(ConvolvedSize(0, {0, 1, 0, 1, 1}), "the image has no pixels");
  CheckLastWindow(5, {0, 1, 0, 2, 1}, 3);
  CheckLastWindow(4, {0, 2, 1, 3, 1}, 2);
  EXPECT_ERROR(CheckLastWindow(6, {1, 1, 0, 2, 1}, 4),
               "the last window along spatial axis 1 lies behind the image and "
               "has no mean: kernel_size is 1, stride is 2, and there are 6");
}

TEST(LimitsTest, ElementsAreCounted) {
  EXPECT_EQ(1, CheckedCount({}));
  EXPECT_EQ(0, CheckedCount({0, INT_MAX, INT_MAX}));
  EXPECT_EQ(INT_MAX, CheckedCount({1, INT_MAX}));
  EXPECT_ERROR(CheckedCount({65536, 65536, 0}),
               "INT_MAX: the shape is 65536 x");
  EXPECT_ERROR(CheckedCount({3, -2}), "is 3 x -2, but no length can be neg");
  EXPECT_ERROR(CheckedCount(std::vector<int>(33, 1)), "more axes");
  EXPECT_EQ(INT_MAX, CheckedProduct(1, INT_MAX));
  EXPECT_ERROR(CheckedProduct(1 << 16, 1 << 15), "65536 times 32768 elements");
}

TEST(LimitsTest, BlobKeepsItsShapeWhereItIsRefusedAnother) {
  Blob<float> blob(std::vector<int>{2, 3});
  EXPECT_ERROR(blob.Reshape({65536, 65536}), "INT_MAX");
  BlobShape cut_off;
  cut_off.add_dim((int64_t(1) << 32) + 1);
  EXPECT_ERROR(blob.Reshape(cut_off), "axis 0 of a blob is 4294967297, but");
  EXPECT_EQ((std::vector<int>{2, 3}), blob.shape());
  EXPECT_EQ(6, blob.count());
  EXPECT_ERROR(Blob<float>(std::vector<int>{0, 4}).cpu_data(),
               "the blob has no elements: 0 4");
}

TEST(LimitsTest, MemoryThatIsNotThereIsNamed) {
  CheckHostMemory(1 << 20);
  EXPECT_ERROR(CheckHostMemory(size_t(1) << 60),
               "a blob of 1152921504606846976 bytes is needed, but only "
               "[0-9]+ bytes are available");
  EXPECT_ERROR(InLayer("big", []() -> int { throw std::bad_alloc(); }),
               "^layer 'big': out of memory");
  EXPECT_ERROR(InLayer("big", []() -> int { throw std::length_error("x"); }),
               "^layer 'big': out of memory");
}

TEST(LimitsTest, FiniteNumbersAreRecognised) {
  std::vector<float> numbers(100, -3e38f);
  EXPECT_TRUE(AllFinite(numbers.data(), numbers.size()));
  EXPECT_TRUE(AllFinite(numbers.data(), 0));
  for (float wrong : {INFINITY, -INFINITY, NAN}) {
    for (int place : {0, 50, 99}) {
      std::vector<float> spoiled = numbers;
      spoiled[place] = wrong;
      EXPECT_FALSE(AllFinite(spoiled.data(), spoiled.size()));
    }
  }
}

TEST(LimitsTest, RecordsHaveTheNumbersOfTheirShape) {
  DataTransformer<float> transformer(TransformationParameter(), TEST);
  Datum datum;
  datum.set_channels(1);
  datum.set_height(2);
  datum.set_width(3);
  datum.set_data("123456");
  Blob<float> image(transformer.InferBlobShape(datum));
  transformer.Transform(datum, &image);
  EXPECT_EQ('6', image.cpu_data()[5]);
  datum.set_data("12345");
  EXPECT_ERROR(transformer.Transform(datum, &image),
               "has 5 numbers, but its shape is 1 x 2 x 3$");
  datum.clear_data();
  EXPECT_ERROR(transformer.Transform(datum, &image), "has 0 numbers");
  // 2^90 is 0 in 64 bits.
  datum.set_channels(1 << 30);
  datum.set_height(1 << 30);
  datum.set_width(1 << 30);
  EXPECT_ERROR(CheckDatum(datum), "INT_MAX");
}

TEST(LimitsTest, InputsOfOldNetsHaveShapes) {
  const auto upgrade = [](const std::string& text) {
    NetParameter net;
    CHECK(google::protobuf::TextFormat::ParseFromString(text, &net));
    UpgradeNetAsNeeded("a net", &net);
    return net.layer(0).input_param().shape_size();
  };
  EXPECT_EQ(1, upgrade("input: 'x' input_dim: 2 input_dim: 1 input_dim: 1 "
                       "input_dim: 1"));
  EXPECT_EQ(1, upgrade("input: 'x' input_shape { dim: 2 }"));
  EXPECT_ERROR(upgrade("input: 'x' input_dim: 2"),
               "has 1 inputs, but 1 of input_dim; each needs four$");
  EXPECT_ERROR(upgrade("input: 'x' input: 'y' input_shape { dim: 2 }"),
               "has 2 inputs, but 1 of input_shape; each needs one$");
}

// Their number was computed, and was negative, before it was refused.
TEST(LimitsTest, ColumnsOfConvolutionsAreCounted) {
  LayerParameter param;
  param.set_type("Convolution");
  param.mutable_convolution_param()->set_num_output(2);
  param.mutable_convolution_param()->add_kernel_size(3);
  Blob<float> bottom(2, 1, 33, 1 << 24), top;
  EXPECT_ERROR(
      LayerRegistry<float>::CreateLayer(param)->SetUp({&bottom}, {&top}),
      "a blob of 9 times 520093634 elements is too large");
}

TEST(LimitsTest, IndicesAreChecked) {
  EXPECT_EQ(3, CheckedIndex(3.f, 4, 0));
  for (float wrong : {4.f, -1.f, 1e30f, INFINITY, NAN}) {
    EXPECT_ERROR(CheckedIndex(wrong, 4, 7),
                 "number 7 of the bottom is .*, but must be an index from 0 to "
                 "3");
  }
}

}  // namespace caffe
