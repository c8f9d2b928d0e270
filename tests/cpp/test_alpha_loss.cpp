// The loss of several draws of each image: known numbers, its limits,
// gradients, ignored labels and refusals.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "caffe/filler.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/test/test_gradient_check_util.hpp"
#include "expect_error.hpp"

namespace caffe {

template <typename TypeParam>
class AlphaLossTest : public MultiDeviceTest<TypeParam> {
 protected:
  typedef typename TypeParam::Dtype Dtype;

  AlphaLossTest() : bottom_{&scores_, &labels_}, top_{&loss_} {}

  /// Scores of `draws` times `images` images at `places` places, by chance, and
  /// labels.
  void Fill(int draws, int images, int classes, int places) {
    Caffe::set_random_seed(7);
    scores_.Reshape({draws * images, classes, places});
    labels_.Reshape({images, places});
    FillerParameter param;
    param.set_std(2);
    GaussianFiller<Dtype>(param).Fill(&scores_);
    for (int i = 0; i < labels_.count(); ++i) {
      labels_.mutable_cpu_data()[i] = (3 * i + 1) % classes;
    }
  }

  shared_ptr<Layer<Dtype>> SetUpLayer(const string& options) {
    LayerParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "name: 'loss' type: 'SoftmaxWithLoss' loss_param {" + options + "}",
        &param));
    auto layer = LayerRegistry<Dtype>::CreateLayer(param);
    layer->SetUp(bottom_, top_);
    return layer;
  }
  Dtype Loss(const string& options) {
    return SetUpLayer(options)->Forward(bottom_, top_);
  }

  /// The probability of label i in draw k.
  double Probability(int k, int i) {
    const int classes = scores_.shape(1), places = scores_.shape(2);
    const Dtype* first = scores_.cpu_data() + k * labels_.count() * classes +
                         i / places * classes * places + i % places;
    double sum = 0;
    for (int c = 0; c < classes; ++c) sum += std::exp(first[c * places]);
    const int label = static_cast<int>(labels_.cpu_data()[i]);
    return std::exp(first[label * places]) / sum;
  }

  Blob<Dtype> scores_, labels_, loss_;
  const vector<Blob<Dtype>*> bottom_, top_;
};

TYPED_TEST_CASE(AlphaLossTest, TestDtypesAndDevices);

// One image, two classes, two draws: their probabilities of the label are 1/2
// and 1/10.
TYPED_TEST(AlphaLossTest, KnownAnswers) {
  typedef typename TypeParam::Dtype Dtype;
  this->scores_.Reshape({2, 2});
  this->labels_.Reshape({1});
  this->labels_.mutable_cpu_data()[0] = 1;
  Dtype* scores = this->scores_.mutable_cpu_data();
  scores[0] = scores[1] = 3;
  scores[2] = std::log(9.);
  scores[3] = 0;
  EXPECT_NEAR(this->Loss("alpha: 0"), (std::log(2.) + std::log(10.)) / 2, 1e-5);
  EXPECT_NEAR(this->Loss("alpha: 1"), -std::log(0.3), 1e-5);
  EXPECT_NEAR(this->Loss("alpha: 2"), -std::log(0.13) / 2, 1e-5);
  // Gradients by alpha 1: the draws' shares are 5/6 and 1/6.
  const auto layer = this->SetUpLayer("alpha: 1");
  layer->Forward(this->bottom_, this->top_);
  this->loss_.mutable_cpu_diff()[0] = 2;
  layer->Backward(this->top_, {true, false}, this->bottom_);
  const double expected[] = {5. / 6, -5. / 6, 2 * 0.9 / 6, -2 * 0.9 / 6};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(this->scores_.cpu_diff()[i], expected[i], 1e-5) << i;
  }
}

TYPED_TEST(AlphaLossTest, MeanOverLabels) {
  this->Fill(3, 4, 5, 2);
  const double alpha = 0.5;
  double sum = 0;
  for (int i = 0; i < 8; ++i) {
    double mean = 0;
    for (int k = 0; k < 3; ++k) {
      mean += std::pow(this->Probability(k, i), alpha) / 3;
    }
    sum -= std::log(mean) / alpha;
  }
  EXPECT_NEAR(this->Loss("alpha: 0.5"), sum / 8, 1e-5 * sum / 8);
  EXPECT_NEAR(this->Loss("alpha: 0.5 normalization: BATCH_SIZE"), sum / 4,
              1e-5 * sum / 4);
  EXPECT_NEAR(this->Loss("alpha: 0.5 normalization: NONE"), sum, 1e-5 * sum);
}

TYPED_TEST(AlphaLossTest, OneDrawIsTheStockLoss) {
  typedef typename TypeParam::Dtype Dtype;
  this->Fill(1, 4, 5, 2);
  const Dtype stock = this->Loss("");
  for (const string alpha : {"0", "0.001", "0.5", "1", "3"}) {
    EXPECT_NEAR(this->Loss("alpha: " + alpha), stock, 1e-5 * stock) << alpha;
  }
}

// The loss falls as alpha grows, without a jump at 0.
TYPED_TEST(AlphaLossTest, FallsWithAlpha) {
  typedef typename TypeParam::Dtype Dtype;
  this->Fill(4, 3, 5, 1);
  const Dtype at_0 = this->Loss("alpha: 0");
  EXPECT_NEAR(this->Loss("alpha: 1e-6"), at_0, 1e-5 * at_0);
  Dtype before = at_0;
  for (const string alpha : {"0.1", "0.5", "1", "10", "100"}) {
    const Dtype loss = this->Loss("alpha: " + alpha);
    EXPECT_LT(loss, before) << alpha;
    before = loss;
  }
}

// Caffe's loss ends at -log of the least normal float, and so does this.
TYPED_TEST(AlphaLossTest, ImpossibleLabels) {
  this->Fill(2, 1, 2, 1);
  this->labels_.mutable_cpu_data()[0] = 1;
  for (int k = 0; k < 2; ++k) {
    this->scores_.mutable_cpu_data()[2 * k] = 1000;
    this->scores_.mutable_cpu_data()[2 * k + 1] = -1000;
  }
  for (const string alpha : {"0", "0.5", "1", "100"}) {
    EXPECT_NEAR(this->Loss("alpha: " + alpha), -std::log(FLT_MIN), 1e-3);
  }
}

TYPED_TEST(AlphaLossTest, Gradients) {
  typedef typename TypeParam::Dtype Dtype;
  for (const int places : {1, 3}) {
    this->Fill(3, 2, 4, places);
    for (const string options :
         {"alpha: 0", "alpha: 0.5", "alpha: 1", "alpha: 2",
          "alpha: 0.5 ignore_label: 1", "alpha: 0.5 normalization: FULL"}) {
      const auto layer = this->SetUpLayer(options);
      GradientChecker<Dtype> checker(1e-2, 1e-2);
      checker.CheckGradientExhaustive(layer.get(), this->bottom_, this->top_,
                                      0);
    }
  }
}

TYPED_TEST(AlphaLossTest, IgnoredLabelsHaveNoLossAndNoGradient) {
  typedef typename TypeParam::Dtype Dtype;
  this->Fill(2, 2, 3, 1);
  this->labels_.mutable_cpu_data()[0] = 255;
  const double p = (this->Probability(0, 1) + this->Probability(1, 1)) / 2;
  const auto layer = this->SetUpLayer("alpha: 1 ignore_label: 255");
  EXPECT_NEAR(layer->Forward(this->bottom_, this->top_), -std::log(p), 1e-5);
  this->loss_.mutable_cpu_diff()[0] = 1;
  layer->Backward(this->top_, {true, false}, this->bottom_);
  const Dtype* diff = this->scores_.cpu_diff();
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(diff[c], 0);
    EXPECT_NE(diff[3 + c], 0);
    EXPECT_EQ(diff[6 + c], 0);
    EXPECT_NE(diff[9 + c], 0);
  }
}

TYPED_TEST(AlphaLossTest, Refusals) {
  this->Fill(3, 2, 4, 1);
  // Without alpha, as in Caffe.
  EXPECT_ERROR(this->SetUpLayer(""), "same first dimension");
  this->labels_.Reshape({4, 1});
  EXPECT_ERROR(
      this->SetUpLayer("alpha: 1"),
      "scores of shape 6 4 1 \\(24\\) and labels of shape 4 1 \\(4\\)");
  this->labels_.Reshape({12, 1});
  EXPECT_ERROR(this->SetUpLayer("alpha: 1"), "a multiple: one for each draw");
}

}  // namespace caffe
