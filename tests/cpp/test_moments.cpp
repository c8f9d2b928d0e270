// Layers that take a mean and a variance, against integrals and against the
// layers whose moments they are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/layers/moments_layer.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

// The mean and the variance of relu(x) for x ~ N(m, v), by the sum over a fine
// grid.
void IntegratedRelu(double m, double v, double slope, double* mean,
                    double* variance) {
  const double deviation = std::sqrt(v), step = 1e-3;
  double sum = 0, weight = 0, squares = 0;
  for (double z = -9; z <= 9; z += step) {
    const double x = m + deviation * z, y = x > 0 ? x : slope * x;
    const double density = std::exp(-z * z / 2);
    weight += density, sum += density * y, squares += density * y * y;
  }
  *mean = sum / weight;
  *variance = squares / weight - *mean * *mean;
}

}  // namespace

template <typename Dtype>
class MomentsLayerTest : public CPUDeviceTest<Dtype> {
 protected:
  // Runs a layer on means and variances of a shape.
  void Run(const LayerParameter& param, const vector<int>& shape,
           const vector<Dtype>& means, const vector<Dtype>& variances) {
    mean_.Reshape(shape), variance_.Reshape(shape);
    ASSERT_EQ(mean_.count(), means.size());
    ASSERT_EQ(mean_.count(), variances.size());
    std::copy(means.begin(), means.end(), mean_.mutable_cpu_data());
    std::copy(variances.begin(), variances.end(), variance_.mutable_cpu_data());
    const vector<Blob<Dtype>*> bottom{&mean_, &variance_};
    const vector<Blob<Dtype>*> top{&top_mean_, &top_variance_};
    const auto layer = LayerRegistry<Dtype>::CreateLayer(param);
    layer->SetUp(bottom, top);
    layer->Forward(bottom, top);
    ASSERT_EQ(top_mean_.shape(), top_variance_.shape());
  }
  // The same numbers each time.
  vector<Dtype> Numbers(int count, double least, double most) {
    vector<Dtype> numbers(count);
    for (int i = 0; i < count; ++i) {
      numbers[i] =
          least + (most - least) * std::fmod(0.6180339887 * (i + 1), 1);
    }
    return numbers;
  }

  Blob<Dtype> mean_, variance_, top_mean_, top_variance_;
};

TYPED_TEST_CASE(MomentsLayerTest, TestDtypes);

TYPED_TEST(MomentsLayerTest, ReluOfAGaussian) {
  LayerParameter param;
  param.set_type("ReLUMoments");
  const vector<TypeParam> m{-30, -4, -1, -0.1, 0, 0.2, 1, 3, 5, 200, 0.5, -2};
  const vector<TypeParam> v{1, 1, 0.5, 2, 1, 1e-4, 1, 4, 1e-3, 9, 1e-8, 30};
  for (const float slope : {0.f, 0.1f}) {
    param.mutable_relu_param()->set_negative_slope(slope);
    this->Run(param, {3, 4}, m, v);
    for (size_t i = 0; i < m.size(); ++i) {
      double mean, variance;
      IntegratedRelu(m[i], v[i], slope, &mean, &variance);
      const double deviation = std::sqrt(v[i]);
      const double rounding = 1e-6 * std::fabs(m[i]);
      EXPECT_NEAR(mean, this->top_mean_.cpu_data()[i],
                  1e-6 * deviation + rounding)
          << m[i] << ", " << v[i] << ", " << slope;
      EXPECT_NEAR(variance, this->top_variance_.cpu_data()[i], 3e-6 * v[i])
          << m[i] << ", " << v[i] << ", " << slope;
    }
  }
}

TYPED_TEST(MomentsLayerTest, ReluWithoutVarianceIsRelu) {
  LayerParameter param;
  param.set_type("ReLUMoments");
  this->Run(param, {5}, {-2, -0.5, 0, 0.25, 3}, vector<TypeParam>(5, 0));
  const vector<TypeParam> expected{0, 0, 0, 0.25, 3};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(expected[i], this->top_mean_.cpu_data()[i]);
    EXPECT_EQ(0, this->top_variance_.cpu_data()[i]);
  }
}

TYPED_TEST(MomentsLayerTest, PoolingTakesTheVarianceOfTheLargestMean) {
  LayerParameter param;
  param.set_type("PoolingMoments");
  param.mutable_pooling_param()->set_kernel_size(3);
  param.mutable_pooling_param()->set_stride(2);
  param.mutable_pooling_param()->set_pad(1);
  const int images = 3, channels = 5, side = 7, given = 4;
  const int count = images * channels * side * side;
  const vector<TypeParam> m = this->Numbers(count, -1, 1);
  vector<TypeParam> v = this->Numbers(count, 0.1, 2);
  std::reverse(v.begin(), v.end());
  this->Run(param, {images, channels, side, side}, m, v);
  ASSERT_EQ((vector<int>{images, channels, given, given}),
            this->top_mean_.shape());
  for (int plane = 0; plane < images * channels; ++plane) {
    for (int y = 0; y < given; ++y) {
      for (int x = 0; x < given; ++x) {
        int best = -1;
        for (int r = std::max(0, 2 * y - 1); r < std::min(side, 2 * y + 2);
             ++r) {
          for (int c = std::max(0, 2 * x - 1); c < std::min(side, 2 * x + 2);
               ++c) {
            const int i = (plane * side + r) * side + c;
            if (best < 0 || m[i] > m[best]) best = i;
          }
        }
        const int i = (plane * given + y) * given + x;
        EXPECT_EQ(m[best], this->top_mean_.cpu_data()[i]);
        EXPECT_EQ(v[best], this->top_variance_.cpu_data()[i]);
      }
    }
  }
}

TYPED_TEST(MomentsLayerTest, PoolingOfNoNumbersGivesNone) {
  LayerParameter param;
  param.set_type("PoolingMoments");
  param.mutable_pooling_param()->set_kernel_size(2);
  const TypeParam none = std::numeric_limits<TypeParam>::quiet_NaN();
  this->Run(param, {1, 1, 2, 2}, vector<TypeParam>(4, none), {1, 2, 3, 4});
  const TypeParam found = this->top_variance_.cpu_data()[0];
  EXPECT_TRUE(std::isnan(found) || (found >= 1 && found <= 4)) << found;
  param.mutable_pooling_param()->set_pool(PoolingParameter_PoolMethod_AVE);
  const auto layer = LayerRegistry<TypeParam>::CreateLayer(param);
  EXPECT_ERROR(layer->SetUp({&this->mean_, &this->variance_},
                            {&this->top_mean_, &this->top_variance_}),
               "pooling_param.pool must be MAX");
}

TYPED_TEST(MomentsLayerTest, LrnMultipliesByTheFactorOfTheMeans) {
  LayerParameter param;
  param.set_type("LRNMoments");
  param.mutable_lrn_param()->set_local_size(3);
  param.mutable_lrn_param()->set_alpha(0.6);
  param.mutable_lrn_param()->set_k(2);
  const int channels = 4;
  const vector<TypeParam> m{1, -2, 0, 3}, v{0.5, 1, 2, 4};
  this->Run(param, {1, channels, 1, 1}, m, v);
  for (int c = 0; c < channels; ++c) {
    double squares = 0;
    for (int i = std::max(0, c - 1); i <= std::min(channels - 1, c + 1); ++i) {
      squares += static_cast<double>(m[i]) * m[i];
    }
    const double factor = std::pow(2 + 0.6 / 3 * squares, -0.75);
    EXPECT_NEAR(m[c] * factor, this->top_mean_.cpu_data()[c], 1e-5);
    // Of a mean of 0 the factor is not seen.
    const double expected = m[c] == 0 ? v[c] : v[c] * factor * factor;
    EXPECT_NEAR(expected, this->top_variance_.cpu_data()[c], 1e-5);
  }
}

TYPED_TEST(MomentsLayerTest, MeansAndVariancesHaveOneShape) {
  LayerParameter param;
  param.set_type("ReLUMoments");
  this->mean_.Reshape({2, 3}), this->variance_.Reshape({3, 2});
  const auto layer = LayerRegistry<TypeParam>::CreateLayer(param);
  EXPECT_ERROR(layer->SetUp({&this->mean_, &this->variance_},
                            {&this->top_mean_, &this->top_variance_}),
               "they must be equal");
}

}  // namespace caffe
