// The Bayesian layers one by one: gradients over a list of shapes, the stock
// layer inside them, draws, options and refusals.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/filler.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/layers/bayes_layer.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/test/test_gradient_check_util.hpp"
#include "caffe/util/io.hpp"
#include "expect_error.hpp"

namespace caffe {

// A layer that draws the same weights in every Forward, as finite differences
// want.
template <template <typename> class Bayes, typename Dtype>
class SameDraw : public Bayes<Dtype> {
 public:
  explicit SameDraw(const LayerParameter& param) : Bayes<Dtype>(param) {}

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    this->SetDraw(5);
    Bayes<Dtype>::Forward_cpu(bottom, top);
  }
  void Forward_gpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    this->SetDraw(5);
    Bayes<Dtype>::Forward_gpu(bottom, top);
  }
};

struct Shape {
  const char* type;
  vector<int> bottom;
  const char* options;
};

const char kConv[] = "BayesConvolution";
const char kDeconv[] = "BayesDeconvolution";
const char kEmbed[] = "BayesEmbed";
const char kInner[] = "BayesInnerProduct";
const char kScale[] = "BayesScale";

// Batch 1, groups, odd counts, no bias, strides, pads, dilation, one and three
// spatial axes; for inner products other axes and a transposed matrix; for
// scales one number, several axes, the batch's axis.
const Shape kShapes[] = {
    {kConv, {1, 1, 3, 3}, "num_output: 1 kernel_size: 3"},
    {kConv, {2, 3, 5, 4}, "num_output: 5 kernel_size: 3 stride: 2 pad: 1"},
    {kConv, {2, 4, 3, 3}, "num_output: 6 kernel_size: 2 group: 2"},
    {kConv, {1, 2, 5, 5}, "num_output: 3 kernel_size: 2 dilation: 2"},
    {kConv, {2, 3, 3, 3}, "num_output: 3 kernel_size: 3 bias_term: false"},
    {kConv, {2, 2, 7}, "num_output: 3 kernel_size: 3"},
    {kConv, {1, 2, 3, 2, 3}, "num_output: 2 kernel_size: 2"},
    {kConv, {2, 3, 2, 2}, "num_output: 3 kernel_size: 1"},
    {kDeconv, {1, 2, 2, 3}, "num_output: 3 kernel_size: 2 stride: 2"},
    {kDeconv, {2, 2, 2, 2}, "num_output: 2 kernel_size: 3 bias_term: false"},
    {kInner, {1, 3}, "num_output: 1"},
    {kInner, {3, 2, 3, 1}, "num_output: 7"},
    {kInner, {2, 5}, "num_output: 3 bias_term: false"},
    {kInner, {2, 5}, "num_output: 3 transpose: true"},
    {kInner, {2, 3, 4}, "num_output: 3 axis: 2"},
    {kEmbed, {5}, "input_dim: 4 num_output: 3"},
    {kEmbed, {2, 3}, "input_dim: 5 num_output: 2 bias_term: false"},
    {kScale, {2, 3, 2, 2}, "bias_term: true"},
    {kScale, {1, 3, 2}, "bias_term: true"},
    {kScale, {3, 4}, ""},
    {kScale, {1, 4}, ""},
    {kScale, {2, 3, 2, 2}, "num_axes: 2 bias_term: true"},
    {kScale, {2, 3}, "axis: 0 num_axes: 0 bias_term: true"},
    {kScale, {2, 3, 2}, "axis: -3 num_axes: -1 bias_term: true"},
    {kDeconv, {1, 4, 2, 2}, "num_output: 4 kernel_size: 2 group: 2"},
};
const Shape& kScaleWithBias = kShapes[17];

// Which weights have one tau.
vector<string> Posteriors(const Shape& shape) {
  vector<string> posteriors = {"", "posterior: PER_WEIGHT "};
  const bool grouped_deconv =
      shape.type == kDeconv && strstr(shape.options, "group");
  if (!grouped_deconv) posteriors.push_back("posterior: PER_OUTPUT ");
  return posteriors;
}

// How a batch gets its noise: one draw, several, or outputs that are drawn; and
// which weights have one tau.
vector<string> WaysToDraw(const Shape& shape) {
  const bool no_batch = strstr(shape.options, "-3");
  vector<string> ways;
  for (const string& posterior : Posteriors(shape)) {
    ways.push_back(posterior);
    if (no_batch) continue;
    ways.push_back(posterior + "draws_per_batch: 2 ");
    if (posterior.empty()) ways.push_back("draws_per_batch: 5 ");
    if (shape.type == kInner) {
      ways.push_back(posterior + "local_reparametrization: true ");
    }
  }
  return ways;
}

template <typename TypeParam>
class BayesLayerTest : public MultiDeviceTest<TypeParam> {
 protected:
  typedef typename TypeParam::Dtype Dtype;
  BayesLayerTest() { Caffe::set_random_seed(1701); }

  static LayerParameter Param(const Shape& shape, const string& bayes_param) {
    const string field = shape.type == kInner   ? "inner_product_param"
                         : shape.type == kEmbed ? "embed_param"
                         : shape.type == kScale ? "scale_param"
                                                : "convolution_param";
    const string text = string("name: 'layer' type: '") + shape.type + "' " +
                        field + " { " + shape.options +
                        (shape.type == kScale ? " filler" : " weight_filler") +
                        " { type: 'gaussian' std: 1 }"
                        " bias_filler { type: 'gaussian' std: 1 } }"
                        " bayes_param { " +
                        bayes_param + " }";
    LayerParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(text, &param)) << text;
    return param;
  }

  static LayerParameter StockParam(const Shape& shape) {
    LayerParameter param = Param(shape, "");
    param.set_type(param.type().substr(5));
    return param;
  }

  static Layer<Dtype>* Make(const LayerParameter& param, bool same_draw) {
#define MAKE_IF_NAMED(name, axis, independent, output_axis)               \
  if (param.type() == Bayes##name##Layer<Dtype>::kType) {                 \
    if (same_draw) return new SameDraw<Bayes##name##Layer, Dtype>(param); \
    return new Bayes##name##Layer<Dtype>(param);                          \
  }
    BAYES_LAYERS(MAKE_IF_NAMED)
#undef MAKE_IF_NAMED
    return nullptr;
  }

  // Sets up a layer on random input. A KL top is part of the loss.
  shared_ptr<Layer<Dtype> > SetUpLayer(const Shape& shape,
                                       const string& bayes_param,
                                       bool same_draw = false,
                                       bool kl_top = false,
                                       Phase phase = TRAIN) {
    LayerParameter param = Param(shape, bayes_param);
    param.set_phase(phase);
    if (kl_top) {
      param.add_loss_weight(0);
      param.add_loss_weight(1);
    }
    shared_ptr<Layer<Dtype> > layer(Make(param, same_draw));
    SetBottom(shape);
    top_.assign(1, &output_);
    if (kl_top) top_.push_back(&kl_);
    layer->SetUp(bottom_, top_);
    // Where there are several taus, no two next to each other are the same.
    const int n = layer->blobs().size() / 3;
    for (int b = n; b < 2 * n; ++b) {
      Blob<Dtype>& delta = *layer->blobs()[b];
      for (int i = 1; i < delta.count(); ++i) {
        delta.mutable_cpu_data()[i] += 0.3 * (i % 5 - 2);
      }
    }
    return layer;
  }

  // The tau of each weight, by the rule of the documentation: axes of length 1
  // are for all.
  static vector<Dtype> TauOfEach(const Blob<Dtype>& m,
                                 const Blob<Dtype>& delta) {
    vector<Dtype> taus;
    for (int i = 0; i < m.count(); ++i) {
      int at = 0, rest = i;
      for (int axis = 0; axis < m.num_axes() && delta.count() > 1; ++axis) {
        const int place = rest / m.count(axis + 1);
        rest %= m.count(axis + 1);
        at = at * delta.shape(axis) + (delta.shape(axis) > 1 ? place : 0);
      }
      taus.push_back(std::log1p(std::exp(delta.cpu_data()[at])));
    }
    return taus;
  }

  void SetBottom(const Shape& shape) {
    input_.Reshape(shape.bottom);
    FillerParameter filler_param;
    GaussianFiller<Dtype>(filler_param).Fill(&input_);
    if (shape.type == kEmbed) {
      const int indices = Param(shape, "").embed_param().input_dim();
      for (int i = 0; i < input_.count(); ++i) {
        input_.mutable_cpu_data()[i] = 3 * i % indices;
      }
    }
    bottom_.assign(1, &input_);
  }

  // Indices have none.
  static bool HasInputGradient(const Layer<Dtype>& layer) {
    return layer.type() != string(kEmbed) && layer.type() != string("Embed");
  }

  // One Backward with a fixed gradient at the output; the gradients of all
  // blobs.
  vector<Dtype> Gradients(Layer<Dtype>* layer, int times = 1) {
    for (const auto& blob : layer->blobs()) {
      std::fill_n(blob->mutable_cpu_diff(), blob->count(), 0);
    }
    for (int i = 0; i < output_.count(); ++i) {
      output_.mutable_cpu_diff()[i] = 0.1 * (i % 7 - 3);
    }
    for (int time = 0; time < times; ++time) {
      layer->Forward(bottom_, top_);
      layer->Backward(top_, vector<bool>(1, HasInputGradient(*layer)), bottom_);
    }
    vector<Dtype> gradients;
    for (const auto& blob : layer->blobs()) {
      gradients.insert(gradients.end(), blob->cpu_diff(),
                       blob->cpu_diff() + blob->count());
    }
    return gradients;
  }

  vector<Dtype> Output(Layer<Dtype>* layer) {
    layer->Forward(bottom_, top_);
    return vector<Dtype>(output_.cpu_data(),
                         output_.cpu_data() + output_.count());
  }

  Blob<Dtype> input_, output_, kl_;
  vector<Blob<Dtype>*> bottom_, top_;
};
TYPED_TEST_CASE(BayesLayerTest, TestDtypesAndDevices);

TYPED_TEST(BayesLayerTest, BlobsAreMeansDeltasAndNoise) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    const auto layer = this->SetUpLayer(
        shape, "kl_weight: 0 tau_init: 0.3 bias_tau_init: 0.05");
    const auto& blobs = layer->blobs();
    const bool has_bias =
        shape.type == kScale
            ? this->Param(shape, "").scale_param().bias_term()
            : string(shape.options).find("bias_term: false") == string::npos;
    const int n = has_bias ? 2 : 1;
    ASSERT_EQ(3 * n, blobs.size());
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(blobs[i]->shape(), blobs[2 * n + i]->shape());
      ASSERT_EQ(1, blobs[n + i]->count());
      EXPECT_NEAR(i == 0 ? 0.3 : 0.05,
                  bayes::Softplus(blobs[n + i]->cpu_data()[0]), 1e-6);
    }
  }
}

// Of m, m_b, delta, delta_b and the bottom, and that epsilon has none.
TYPED_TEST(BayesLayerTest, GradientsOfTheLoss) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + way);
      const auto layer =
          this->SetUpLayer(shape, way + "kl_weight: 0 tau_init: 0.5", true);
      GradientChecker<Dtype> checker(1e-2, 2e-3);
      const int bottoms = this->HasInputGradient(*layer) ? -1 : -2;
      checker.CheckGradientExhaustive(layer.get(), this->bottom_, this->top_,
                                      bottoms);
    }
  }
}

// The gradients with KL less those without are the change of the KL top.
TYPED_TEST(BayesLayerTest, GradientsOfKL) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + way);
      const string prior = way +
                           "prior_mean: 0.2 prior_std: 0.8 bias_prior_std: 0.5 "
                           "tau_init: 0.5 ";
      Caffe::set_random_seed(1);
      auto layer = this->SetUpLayer(shape, prior + "kl_weight: 0", true);
      const vector<Dtype> without = this->Gradients(layer.get());
      Caffe::set_random_seed(1);
      layer = this->SetUpLayer(shape, prior + "kl_weight: 30 dataset_size: 100",
                               true, true);
      const vector<Dtype> with = this->Gradients(layer.get());
      int k = 0;
      const int learned = layer->blobs().size() / 3 * 2;
      for (int b = 0; b < layer->blobs().size(); ++b) {
        Blob<Dtype>* blob = layer->blobs()[b].get();
        for (int i = 0; i < blob->count(); ++i, ++k) {
          if (b >= learned) {
            EXPECT_EQ(0, with[k]);
            continue;
          }
          const Dtype kept = blob->cpu_data()[i];
          const Dtype step = std::fabs(kept) * 1e-2;
          const auto kl_at = [&](Dtype x) {
            blob->mutable_cpu_data()[i] = x;
            layer->Forward(this->bottom_, this->top_);
            return this->kl_.cpu_data()[0];
          };
          const double above = kl_at(kept + step), below = kl_at(kept - step);
          blob->mutable_cpu_data()[i] = kept;
          const double expected = (above - below) / (2 * step);
          EXPECT_NEAR(expected, with[k] - without[k],
                      5e-3 * (1 + std::fabs(expected)))
              << "blob " << b << " number " << i;
        }
      }
    }
  }
}

TYPED_TEST(BayesLayerTest, BackwardAccumulatesForIterSize) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + way);
      const auto layer = this->SetUpLayer(
          shape, way + "kl_weight: 30 dataset_size: 100 prior_std: 1", true);
      const vector<Dtype> once = this->Gradients(layer.get());
      const vector<Dtype> twice = this->Gradients(layer.get(), 2);
      for (int i = 0; i < once.size(); ++i) {
        EXPECT_NEAR(2 * once[i], twice[i], 1e-4 * (1 + std::fabs(once[i])));
      }
    }
  }
}

TYPED_TEST(BayesLayerTest, WithoutSamplingItIsTheStockLayer) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    const auto bayes = this->SetUpLayer(shape, "kl_weight: 0 sample: NEVER");
    const vector<Dtype> output = this->Output(bayes.get());
    const vector<Dtype> gradients = this->Gradients(bayes.get());
    const auto stock =
        LayerRegistry<Dtype>::CreateLayer(this->StockParam(shape));
    stock->SetUp(this->bottom_, this->top_);
    for (int i = 0; i < stock->blobs().size(); ++i) {
      stock->blobs()[i]->CopyFrom(*bayes->blobs()[i]);
    }
    EXPECT_EQ(output, this->Output(stock.get()));
    const vector<Dtype> stock_gradients = this->Gradients(stock.get());
    for (int i = 0; i < stock_gradients.size(); ++i) {
      EXPECT_EQ(stock_gradients[i], gradients[i]);
    }
  }
}

TYPED_TEST(BayesLayerTest, SamplesWhenTold) {
  struct {
    const char* sample;
    Phase phase;
    bool samples;
  } cases[] = {{"ALWAYS", TRAIN, true},     {"ALWAYS", TEST, true},
               {"TRAIN_ONLY", TRAIN, true}, {"TRAIN_ONLY", TEST, false},
               {"NEVER", TRAIN, false},     {"NEVER", TEST, false}};
  for (const auto& c : cases) {
    const auto layer = this->SetUpLayer(
        kShapes[11], string("kl_weight: 0 sample: ") + c.sample, false, false,
        c.phase);
    EXPECT_EQ(c.samples, this->Output(layer.get()) != this->Output(layer.get()))
        << c.sample << " in phase " << c.phase;
  }
}

TYPED_TEST(BayesLayerTest, DrawsHaveNames) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    const auto layer = this->SetUpLayer(shape, "kl_weight: 0");
    bayes::Stochastic* draws = dynamic_cast<bayes::Stochastic*>(layer.get());
    const vector<Dtype> zero = this->Output(layer.get());
    const vector<Dtype> one = this->Output(layer.get());
    EXPECT_NE(zero, one);
    draws->SetDraw(1);
    EXPECT_EQ(one, this->Output(layer.get()));
    draws->SetDraw(0);
    EXPECT_EQ(zero, this->Output(layer.get()));
    EXPECT_EQ(one, this->Output(layer.get()));
  }
}

// The output is the stock layer's with weights m (1 + tau epsilon), biases too.
TYPED_TEST(BayesLayerTest, ADrawIsTheStockLayerWithDrawnWeights) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    for (const string& posterior : Posteriors(shape)) {
      SCOPED_TRACE(posterior);
      const auto bayes = this->SetUpLayer(
          shape, posterior + "kl_weight: 0 tau_init: 0.5 bias_tau_init: 0.3");
      const vector<Dtype> output = this->Output(bayes.get());
      const auto stock =
          LayerRegistry<Dtype>::CreateLayer(this->StockParam(shape));
      stock->SetUp(this->bottom_, this->top_);
      const int n = stock->blobs().size();
      for (int i = 0; i < n; ++i) {
        const Blob<Dtype>& m = *bayes->blobs()[i];
        const Blob<Dtype>& epsilon = *bayes->blobs()[2 * n + i];
        const vector<Dtype> taus = this->TauOfEach(m, *bayes->blobs()[n + i]);
        for (int j = 0; j < m.count(); ++j) {
          stock->blobs()[i]->mutable_cpu_data()[j] =
              m.cpu_data()[j] * (1 + taus[j] * epsilon.cpu_data()[j]);
        }
      }
      const vector<Dtype> expected = this->Output(stock.get());
      for (int i = 0; i < output.size(); ++i) {
        EXPECT_NEAR(expected[i], output[i],
                    1e-5 * (1 + std::fabs(expected[i])));
      }
    }
  }
}

// The shape of delta for each kind of layer.
TYPED_TEST(BayesLayerTest, OutputsOrWeightsHaveATauOfTheirOwn) {
  const auto check = [this](const Shape& shape, const vector<int>& per_output,
                            const vector<int>& per_weight,
                            const vector<int>& biases) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    const string init = "kl_weight: 0 tau_init: 0.3 bias_tau_init: 0.05 ";
    const auto shared = this->SetUpLayer(shape, init + "posterior: SHARED");
    EXPECT_EQ(vector<int>({1}), shared->blobs()[2]->shape());
    const auto outputs =
        this->SetUpLayer(shape, init + "posterior: PER_OUTPUT");
    EXPECT_EQ(per_output, outputs->blobs()[2]->shape());
    EXPECT_EQ(biases, outputs->blobs()[3]->shape());
    const auto weights =
        this->SetUpLayer(shape, init + "posterior: PER_WEIGHT");
    EXPECT_EQ(per_weight, weights->blobs()[2]->shape());
    EXPECT_EQ(biases, weights->blobs()[3]->shape());
    // SetUpLayer leaves the first as it was.
    EXPECT_NEAR(0.3, bayes::Softplus(weights->blobs()[2]->cpu_data()[0]), 1e-6);
    EXPECT_NEAR(0.05, bayes::Softplus(weights->blobs()[3]->cpu_data()[0]),
                1e-6);
  };
  check({kConv, {1, 4, 3, 3}, "num_output: 6 kernel_size: 2 group: 2"},
        {6, 1, 1, 1}, {6, 2, 2, 2}, {6});
  check({kDeconv, {1, 2, 3, 3}, "num_output: 3 kernel_size: 2"}, {1, 3, 1, 1},
        {2, 3, 2, 2}, {3});
  check({kInner, {2, 5}, "num_output: 3"}, {3, 1}, {3, 5}, {3});
  check({kInner, {2, 5}, "num_output: 3 transpose: true"}, {1, 3}, {5, 3}, {3});
  check({kEmbed, {5}, "input_dim: 4 num_output: 3"}, {1, 3}, {4, 3}, {3});
  check({kScale, {2, 3, 2}, "num_axes: 2 bias_term: true"}, {3, 2}, {3, 2},
        {3, 2});
}

// Where all taus are the same, it does not matter who has which, and the
// gradient of one delta for all is the sum of theirs.
TYPED_TEST(BayesLayerTest, EqualTausAreOneTau) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    const string options =
        "kl_weight: 30 dataset_size: 100 prior_std: 0.8 tau_init: 0.5 ";
    vector<vector<Dtype> > found;
    for (const string& posterior : Posteriors(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + posterior);
      Caffe::set_random_seed(1);
      const auto layer =
          this->SetUpLayer(shape, options + posterior, true, true);
      const int n = layer->blobs().size() / 3;
      for (int b = n; b < 2 * n; ++b) {
        Blob<Dtype>& delta = *layer->blobs()[b];
        std::fill_n(delta.mutable_cpu_data(), delta.count(),
                    delta.cpu_data()[0]);
      }
      this->Gradients(layer.get());
      vector<Dtype> numbers(this->output_.cpu_data(),
                            this->output_.cpu_data() + this->output_.count());
      numbers.push_back(this->kl_.cpu_data()[0]);
      for (int b = 0; b < n; ++b) {
        const Blob<Dtype>& m = *layer->blobs()[b];
        numbers.insert(numbers.end(), m.cpu_diff(), m.cpu_diff() + m.count());
        const Blob<Dtype>& delta = *layer->blobs()[n + b];
        numbers.push_back(std::accumulate(
            delta.cpu_diff(), delta.cpu_diff() + delta.count(), 0.));
      }
      found.push_back(numbers);
      ASSERT_EQ(found[0].size(), numbers.size());
      for (int i = 0; i < numbers.size(); ++i) {
        EXPECT_NEAR(found[0][i], numbers[i],
                    2e-5 * (1 + std::fabs(found[0][i])))
            << "number " << i;
      }
    }
  }
}

// A net that was trained with one tau for all weights can go on with more.
TYPED_TEST(BayesLayerTest, OneTauOfAFileIsThatOfAllWeights) {
  typedef typename TypeParam::Dtype Dtype;
  const Shape& shape = kShapes[11];
  const auto save = [&](const string& posterior) {
    const auto layer = this->SetUpLayer(shape, "kl_weight: 0 " + posterior);
    layer->blobs()[2]->mutable_cpu_data()[0] = -3;
    LayerParameter saved;
    layer->ToProto(&saved);
    return saved;
  };
  const auto load = [&](LayerParameter saved, BayesParameter::Posterior kind) {
    saved.mutable_bayes_param()->set_posterior(kind);
    const auto layer = LayerRegistry<Dtype>::CreateLayer(saved);
    layer->SetUp(this->bottom_, this->top_);
    return layer;
  };
  for (const auto kind :
       {BayesParameter::PER_OUTPUT, BayesParameter::PER_WEIGHT}) {
    const auto layer = load(save("posterior: SHARED"), kind);
    const Blob<Dtype>& delta = *layer->blobs()[2];
    EXPECT_EQ(kind == BayesParameter::PER_OUTPUT ? 7 : 42, delta.count());
    for (int i = 0; i < delta.count(); ++i) {
      EXPECT_EQ(-3, delta.cpu_data()[i]);
    }
  }
  EXPECT_ERROR(load(save("posterior: PER_WEIGHT"), BayesParameter::SHARED),
               "layer 'layer': bayes_param.posterior is SHARED, which makes "
               "delta a blob of shape 1 .1., but the trained layer has one of "
               "shape 7 6 .42.; set posterior as in its training");
  EXPECT_ERROR(load(save("posterior: PER_OUTPUT"), BayesParameter::PER_WEIGHT),
               "posterior is PER_WEIGHT, .* has one of shape 7 1 .7.");
}

// The median and the range of several taus.
TYPED_TEST(BayesLayerTest, UncertaintySummarizesTaus) {
  const Shape& shape = kShapes[11];
  const auto layer =
      this->SetUpLayer(shape, "kl_weight: 0 posterior: PER_OUTPUT");
  const double taus[] = {0.3, 2, 0.1, 0.5, 0.4, 7, 0.2};
  for (int i = 0; i < 7; ++i) {
    layer->blobs()[2]->mutable_cpu_data()[i] = bayes::SoftplusInverse(taus[i]);
    layer->blobs()[3]->mutable_cpu_data()[i] =
        bayes::SoftplusInverse(i == 3 ? 1e-9 : taus[i]);
  }
  auto* stochastic = dynamic_cast<bayes::Stochastic*>(layer.get());
  const auto found = stochastic->GetUncertainty().taus;
  ASSERT_EQ(2, found.size());
  EXPECT_NEAR(0.4, found[0].median, 1e-6);
  EXPECT_NEAR(0.1, found[0].lowest, 1e-6);
  EXPECT_NEAR(7, found[0].highest, 1e-5);
  EXPECT_NEAR(0.3, found[1].median, 1e-6);
  EXPECT_NEAR(4.54e-5, found[1].lowest, 1e-8);
  const vector<double> all = stochastic->GetTaus(0);
  ASSERT_EQ(7, all.size());
  for (int i = 0; i < 7; ++i) EXPECT_NEAR(taus[i], all[i], 1e-5);
  layer->blobs()[2]->mutable_cpu_data()[4] = NAN;
  EXPECT_TRUE(std::isnan(stochastic->GetUncertainty().taus[0].median));
}

TYPED_TEST(BayesLayerTest, SeedAndLayerNameMakeTheDraw) {
  typedef typename TypeParam::Dtype Dtype;
  LayerParameter param = this->Param(kShapes[11], "kl_weight: 0");
  const auto draw = [&](int seed, const string& name) {
    Caffe::set_random_seed(seed);
    param.set_name(name);
    BayesInnerProductLayer<Dtype> layer(param);
    this->SetBottom(kShapes[11]);
    this->top_.assign(1, &this->output_);
    layer.SetUp(this->bottom_, this->top_);
    this->Output(&layer);
    const Blob<Dtype>& epsilon = *layer.blobs()[4];
    return vector<Dtype>(epsilon.cpu_data(),
                         epsilon.cpu_data() + epsilon.count());
  };
  EXPECT_EQ(draw(1, "a"), draw(1, "a"));
  EXPECT_NE(draw(1, "a"), draw(2, "a"));
  EXPECT_NE(draw(1, "a"), draw(1, "b"));
}

TYPED_TEST(BayesLayerTest, WeightsAndBiasesHaveNoiseOfTheirOwn) {
  const auto layer = this->SetUpLayer(kShapes[10], "kl_weight: 0");
  this->Output(layer.get());
  EXPECT_NE(layer->blobs()[4]->cpu_data()[0], layer->blobs()[5]->cpu_data()[0]);
}

// The same image at each place of a batch: how many different outputs it has.
TYPED_TEST(BayesLayerTest, ImagesOfABatchHaveTheNoiseOfTheirPart) {
  typedef typename TypeParam::Dtype Dtype;
  struct {
    const char* options;
    Phase phase;
    vector<int> draw_of_image;
  } cases[] = {
      {"", TRAIN, {0, 0, 0, 0, 0}},
      {"draws_per_batch: 2", TRAIN, {0, 0, 1, 1, 1}},
      {"draws_per_batch: 3", TRAIN, {0, 1, 1, 2, 2}},
      {"draws_per_batch: 9", TRAIN, {0, 1, 2, 3, 4}},
      {"draws_per_batch: 3", TEST, {0, 0, 0, 0, 0}},
      {"draws_per_batch: 3 sample: NEVER", TRAIN, {0, 0, 0, 0, 0}},
      {"local_reparametrization: true", TRAIN, {0, 1, 2, 3, 4}},
      {"local_reparametrization: true", TEST, {0, 0, 0, 0, 0}},
      {"local_reparametrization: true sample: NEVER", TRAIN, {0, 0, 0, 0, 0}},
  };
  const Shape shapes[] = {
      {kInner, {5, 3}, "num_output: 4"},
      {kConv, {5, 2, 4, 4}, "num_output: 3 kernel_size: 3"},
      {kDeconv, {5, 2, 2, 2}, "num_output: 2 kernel_size: 2"},
      {kEmbed, {5, 2}, "num_output: 2 input_dim: 3"},
      {kScale, {5, 3}, "bias_term: true"}};
  for (const Shape& shape : shapes) {
    for (const auto& c : cases) {
      if (shape.type != kInner && c.options[0] == 'l') continue;
      SCOPED_TRACE(string(shape.type) + " " + c.options);
      const auto layer = this->SetUpLayer(
          shape, string("kl_weight: 0 ") + c.options, false, false, c.phase);
      const int size = this->input_.count(1);
      Dtype* x = this->input_.mutable_cpu_data();
      for (int i = 1; i < 5; ++i) std::copy(x, x + size, x + i * size);
      const vector<Dtype> y = this->Output(layer.get());
      const int outputs = y.size() / 5;
      for (int i = 0; i < 5; ++i) {
        for (int j = 0; j < 5; ++j) {
          EXPECT_EQ(
              c.draw_of_image[i] == c.draw_of_image[j],
              std::equal(y.begin() + i * outputs, y.begin() + (i + 1) * outputs,
                         y.begin() + j * outputs))
              << i << " and " << j;
        }
      }
    }
  }
}

// The first part of a batch has the draw that the whole batch would have, so
// that a draw has one meaning.
TYPED_TEST(BayesLayerTest, TheFirstPartHasTheUndividedBatchsDraw) {
  typedef typename TypeParam::Dtype Dtype;
  Caffe::set_random_seed(3);
  const auto whole = this->SetUpLayer(kShapes[1], "kl_weight: 0", true);
  const vector<Dtype> expected = this->Output(whole.get());
  Caffe::set_random_seed(3);
  const auto parts =
      this->SetUpLayer(kShapes[1], "kl_weight: 0 draws_per_batch: 2", true);
  const vector<Dtype> found = this->Output(parts.get());
  const int half = expected.size() / 2;
  for (int i = 0; i < half; ++i) {
    EXPECT_NEAR(expected[i], found[i], 1e-5) << i;
  }
  EXPECT_NE(vector<Dtype>(expected.begin() + half, expected.end()),
            vector<Dtype>(found.begin() + half, found.end()));
}

// Outputs that are drawn have the mean and the variance, over many draws, of
// those of drawn weights, and of two images each its own noise.
TYPED_TEST(BayesLayerTest, DrawnOutputsAreDistributedAsThoseOfDrawnWeights) {
  typedef typename TypeParam::Dtype Dtype;
  const Shape shape = {kInner, {2, 6}, "num_output: 2"};
  const int kDraws = 20000;
  vector<vector<double> > mean, variance;
  for (const string way : {"", "local_reparametrization: true"}) {
    Caffe::set_random_seed(5);
    const auto layer =
        this->SetUpLayer(shape, way + " kl_weight: 0 tau_init: 0.7");
    vector<double> sum(4), sum_sq(4);
    double product = 0;
    for (int d = 0; d < kDraws; ++d) {
      const vector<Dtype> y = this->Output(layer.get());
      for (int i = 0; i < 4; ++i) {
        sum[i] += y[i];
        sum_sq[i] += y[i] * y[i];
      }
      product += y[0] * y[2];
    }
    for (int i = 0; i < 4; ++i) {
      sum[i] /= kDraws;
      sum_sq[i] = sum_sq[i] / kDraws - sum[i] * sum[i];
    }
    mean.push_back(sum);
    variance.push_back(sum_sq);
    if (!way.empty()) {
      const double correlation = (product / kDraws - sum[0] * sum[2]) /
                                 std::sqrt(sum_sq[0] * sum_sq[2]);
      EXPECT_NEAR(0, correlation, 4 / std::sqrt(kDraws));
    }
  }
  for (int i = 0; i < 4; ++i) {
    const double error = std::sqrt(2 * variance[0][i] / kDraws);
    EXPECT_NEAR(mean[0][i], mean[1][i], 4 * error);
    // The standard error of a normal's variance is sqrt(2 / n) of it.
    EXPECT_NEAR(1, variance[1][i] / variance[0][i], 4 * 2 / std::sqrt(kDraws));
  }
}

// Nothing comes in, nothing is known of the bias: no variance, no NaN.
TYPED_TEST(BayesLayerTest, AnOutputWithoutVarianceHasAGradient) {
  typedef typename TypeParam::Dtype Dtype;
  const auto layer = this->SetUpLayer(
      kShapes[12], "kl_weight: 0 local_reparametrization: true");
  std::fill_n(this->input_.mutable_cpu_data(), this->input_.count(), 0);
  for (Dtype gradient : this->Gradients(layer.get())) {
    EXPECT_EQ(0, gradient);
  }
  for (int i = 0; i < this->input_.count(); ++i) {
    EXPECT_TRUE(std::isfinite(this->input_.cpu_diff()[i]));
  }
}

TYPED_TEST(BayesLayerTest, KLTopIsScaledKL) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : {kShapes[10], kShapes[15], kScaleWithBias}) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options);
    const auto layer =
        this->SetUpLayer(shape, "kl_weight: 0.5 dataset_size: 10", false, true);
    const double loss = layer->Forward(this->bottom_, this->top_);
    double kl = 0;
    for (int b = 0; b < 2; ++b) {
      const Blob<Dtype>& m = *layer->blobs()[b];
      for (int i = 0; i < m.count(); ++i) {
        kl += bayes::WeightKL<double>(m.cpu_data()[i], b == 0 ? 0.4 : 0.1, 0,
                                      b == 0 ? 5 : 10);
      }
    }
    EXPECT_EQ(0, this->kl_.num_axes());
    EXPECT_NEAR(kl * 0.5 / 10, this->kl_.cpu_data()[0], 1e-5);
    EXPECT_EQ(loss, this->kl_.cpu_data()[0]);
  }
}

// Draw n is the n-th forward pass of training, counted from 0. What the log
// says KL adds is what the KL top has.
TYPED_TEST(BayesLayerTest, KLRisesOverTheRamp) {
  const string kl = "kl_weight: 0.5 dataset_size: 10 ";
  for (const Shape& shape : {kShapes[10], kShapes[15], kScaleWithBias}) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + way);
      for (Phase phase : {TRAIN, TEST}) {
        const auto layer = this->SetUpLayer(shape, way + kl + "kl_ramp: 4",
                                            false, true, phase);
        auto* stochastic = dynamic_cast<bayes::Stochastic*>(layer.get());
        const bayes::Uncertainty whole = stochastic->GetUncertainty();
        EXPECT_NEAR(0.05, whole.kl_scale, 1e-8);
        const double end = whole.kl_scale * whole.kl;
        const auto expect_share = [&](double share) {
          layer->Forward(this->bottom_, this->top_);
          const double found = this->kl_.cpu_data()[0];
          EXPECT_NEAR(phase == TRAIN ? share * end : end, found, 1e-5);
          EXPECT_NEAR(found, stochastic->GetUncertainty().kl_term(), 1e-5);
        };
        for (double share : {0.25, 0.5, 0.75, 1., 1.}) expect_share(share);
        stochastic->SetDraw(1);
        expect_share(0.5);
        stochastic->Hold(true);
        expect_share(0.5);
      }
    }
  }
}

// The draw is number 5, so 6 / 8 of KL counts.
TYPED_TEST(BayesLayerTest, GradientsOfKLFollowTheRamp) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : {kShapes[1], kShapes[11], kScaleWithBias}) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + way);
      const auto gradients = [&](const string& kl) {
        Caffe::set_random_seed(1);
        const auto layer =
            this->SetUpLayer(shape, way + "prior_std: 0.8 " + kl, true);
        return this->Gradients(layer.get());
      };
      const string kl = "kl_weight: 30 dataset_size: 100 ";
      const vector<Dtype> without = gradients("kl_weight: 0"),
                          whole = gradients(kl),
                          ramped = gradients(kl + "kl_ramp: 8");
      double largest = 0;
      for (int i = 0; i < whole.size(); ++i) {
        const double of_kl = whole[i] - without[i];
        largest = std::max(largest, std::fabs(of_kl));
        EXPECT_NEAR(without[i] + 0.75 * of_kl, ramped[i],
                    1e-4 * (1 + std::fabs(whole[i])));
      }
      EXPECT_GT(largest, 0.1);
    }
  }
}

// delta learns even where m is frozen, and the other way round.
TYPED_TEST(BayesLayerTest, EachParameterCanBeFrozen) {
  for (const Shape& shape :
       {kShapes[1], kShapes[11], kShapes[15], kScaleWithBias}) {
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.type) + " " + way);
      const auto layer = this->SetUpLayer(shape, way + "kl_weight: 0", true);
      for (int frozen = 0; frozen < 4; ++frozen) {
        layer->set_param_propagate_down(frozen, false);
        this->Gradients(layer.get());
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(i != frozen, layer->blobs()[i]->asum_diff() > 0)
              << "blob " << i << " with " << frozen << " frozen";
        }
        layer->set_param_propagate_down(frozen, true);
      }
    }
  }
}

TYPED_TEST(BayesLayerTest, TakesTheBlobsThatItsParameterBrings) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    for (const string noise : {"", " save_noise: true"}) {
      SCOPED_TRACE(string(shape.type) + " " + shape.options + noise);
      const auto layer = this->SetUpLayer(shape, "kl_weight: 0" + noise);
      const int blobs = layer->blobs().size();
      layer->blobs()[blobs / 3]->mutable_cpu_data()[0] = -3;
      const vector<Dtype> output = this->Output(layer.get());
      LayerParameter saved;
      layer->ToProto(&saved);
      ASSERT_EQ(blobs, saved.blobs_size());
      for (int i = 0; i < blobs; ++i) {
        const BlobProto& blob = saved.blobs(i);
        const bool has_numbers = i < blobs / 3 * 2 || !noise.empty();
        EXPECT_EQ(has_numbers ? layer->blobs()[i]->count() : 0,
                  blob.data_size() + blob.double_data_size());
        EXPECT_TRUE(layer->blobs()[i]->ShapeEquals(blob));
      }
      const auto copy = LayerRegistry<Dtype>::CreateLayer(saved);
      copy->SetUp(this->bottom_, this->top_);
      ASSERT_EQ(blobs, copy->blobs().size());
      EXPECT_EQ(-3, copy->blobs()[blobs / 3]->cpu_data()[0]);
      EXPECT_EQ(output, this->Output(copy.get()));
    }
  }
}

// A layer that writes where its input is gives the same numbers, also where the
// parts of a batch have their own draws.
TYPED_TEST(BayesLayerTest, InPlaceItComputesTheSame) {
  typedef typename TypeParam::Dtype Dtype;
  for (const Shape& shape : kShapes) {
    if (shape.type != kScale) continue;
    for (const string& way : WaysToDraw(shape)) {
      SCOPED_TRACE(string(shape.options) + " " + way);
      vector<vector<Dtype> > found[2];
      for (bool in_place : {false, true}) {
        Caffe::set_random_seed(7);
        const auto layer = this->SetUpLayer(shape, way + "kl_weight: 0", true);
        if (in_place) {
          this->top_[0] = &this->input_;
          layer->Reshape(this->bottom_, this->top_);
        }
        Blob<Dtype>& top = *this->top_[0];
        layer->Forward(this->bottom_, this->top_);
        auto& numbers = found[in_place];
        numbers.push_back({top.cpu_data(), top.cpu_data() + top.count()});
        for (int i = 0; i < top.count(); ++i) {
          top.mutable_cpu_diff()[i] = 0.1 * (i % 7 - 3);
        }
        layer->Backward(this->top_, {true}, this->bottom_);
        for (Blob<Dtype>* blob :
             {&this->input_, layer->blobs()[0].get(), layer->blobs()[1].get(),
              layer->blobs()[layer->blobs().size() / 2].get()}) {
          numbers.push_back(
              {blob->cpu_diff(), blob->cpu_diff() + blob->count()});
        }
      }
      for (int i = 0; i < found[0].size(); ++i) {
        for (int j = 0; j < found[0][i].size(); ++j) {
          EXPECT_NEAR(found[0][i][j], found[1][i][j], 1e-6)
              << "array " << i << ", number " << j;
        }
      }
    }
  }
}

TYPED_TEST(BayesLayerTest, NonsenseIsRefusedByName) {
  struct {
    const char* bayes_param;
    const char* message;
  } cases[] = {
      {"kl_weight: 1", "layer 'layer': bayes_param.dataset_size is missing"},
      {"dataset_size: 0", "bayes_param.dataset_size is 0, but must be"},
      {"dataset_size: -5", "bayes_param.dataset_size is -5"},
      {"kl_weight: -1", "bayes_param.kl_weight is -1, but must be"},
      {"kl_weight: nan", "bayes_param.kl_weight is -?nan"},
      {"kl_ramp: -5", "bayes_param.kl_ramp is -5, but must be a number of"},
      {"kl_weight: 0 tau_init: 0", "bayes_param.tau_init is 0, but must be"},
      {"kl_weight: 0 tau_init: -0.4", "bayes_param.tau_init is -0.4"},
      {"kl_weight: 0 tau_init: inf", "bayes_param.tau_init is inf"},
      {"kl_weight: 0 bias_tau_init: 1e-9",
       "bayes_param.bias_tau_init is 1e-09"},
      {"kl_weight: 0 tau_min: 0", "bayes_param.tau_min is 0"},
      {"kl_weight: 0 prior_std: 0", "bayes_param.prior_std is 0"},
      {"kl_weight: 0 bias_prior_std: -1", "bayes_param.bias_prior_std is -1"},
      {"kl_weight: 0 prior_mean: nan", "bayes_param.prior_mean is -?nan"},
      {"kl_weight: 0 bias_prior_mean: inf",
       "bayes_param.bias_prior_mean is inf"},
      {"kl_weight: 0 draws_per_batch: 0",
       "bayes_param.draws_per_batch is 0, but must be 1 or more"},
      {"kl_weight: 0 draws_per_batch: 2 local_reparametrization: true",
       "bayes_param.draws_per_batch is 2, but must be 1 with local"},
  };
  for (const auto& c : cases) {
    EXPECT_ERROR(this->SetUpLayer(kShapes[11], c.bayes_param), c.message);
  }
}

TYPED_TEST(BayesLayerTest, NoiseOfABatchIsRefusedWhereItHasNoMeaning) {
  EXPECT_ERROR(this->SetUpLayer(kShapes[0],
                                "kl_weight: 0 local_reparametrization: true"),
               "bayes_param.local_reparametrization is true, but must be false "
               "in a layer of type BayesConvolution");
  const Shape no_batch = {kInner, {3, 2}, "num_output: 2 axis: 0"};
  EXPECT_ERROR(this->SetUpLayer(no_batch, "kl_weight: 0 draws_per_batch: 2"),
               "bayes_param.draws_per_batch is 2, but must be 1 where axis");
  const Shape scale_of_each_image = {kScale, {3, 2}, "axis: 0"};
  EXPECT_ERROR(
      this->SetUpLayer(scale_of_each_image, "kl_weight: 0 draws_per_batch: 2"),
      "bayes_param.draws_per_batch is 2, but must be 1 where axis");
}

TYPED_TEST(BayesLayerTest, OutputsThatNoAxisNumbersAreRefused) {
  EXPECT_ERROR(
      this->SetUpLayer(kShapes[24], "kl_weight: 0 posterior: PER_OUTPUT"),
      "bayes_param.posterior is PER_OUTPUT, but must be SHARED or PER_WEIGHT "
      "in a layer of type BayesDeconvolution whose group is not 1");
}

TYPED_TEST(BayesLayerTest, AScaleThatIsAnotherBottomIsRefused) {
  typedef typename TypeParam::Dtype Dtype;
  this->SetBottom(kScaleWithBias);
  Blob<Dtype> scale(vector<int>(1, 3));
  BayesScaleLayer<Dtype> layer(this->Param(kScaleWithBias, "kl_weight: 0"));
  EXPECT_ERROR(layer.SetUp({&this->input_, &scale}, {&this->output_}),
               "layer 'layer' has 2 bottoms; a layer of type BayesScale takes "
               "one");
}

TYPED_TEST(BayesLayerTest, WrongTopsAreRefused) {
  typedef typename TypeParam::Dtype Dtype;
  LayerParameter param = this->Param(kShapes[11], "kl_weight: 0");
  this->SetBottom(kShapes[11]);
  Blob<Dtype> third;
  BayesInnerProductLayer<Dtype> layer(param);
  EXPECT_ERROR(layer.SetUp(this->bottom_, {&this->output_, &this->kl_, &third}),
               "layer 'layer' has 1 bottoms and 3 tops");
  param.add_loss_weight(0);
  param.add_loss_weight(0.5);
  BayesInnerProductLayer<Dtype> weighted(param);
  EXPECT_ERROR(weighted.SetUp(this->bottom_, {&this->output_, &this->kl_}),
               "loss_weight of its KL top is 0.5, but must be 0 or 1");
}

#ifndef CPU_ONLY

template <typename Dtype>
class DevicesTest : public BayesLayerTest<GPUDevice<Dtype> > {
 protected:
  typedef vector<vector<Dtype> > Numbers;

  static vector<Dtype> Copy(const Dtype* numbers, int count) {
    return vector<Dtype>(numbers, numbers + count);
  }

  // All that two passes with KL leave behind, and the noise of the second.
  Numbers Run(Caffe::Brew device, const Shape& shape, const string& way,
              Phase phase, Numbers* noise) {
    Caffe::set_mode(device);
    Caffe::set_random_seed(11);
    const auto layer = this->SetUpLayer(
        shape,
        way +
            (way.find("prior_from") == string::npos ? "prior_mean: 0.2 " : "") +
            "kl_weight: 30 dataset_size: 100 prior_std: 0.8 "
            "bias_prior_std: 0.5 tau_init: 0.5",
        false, true, phase);
    // One blob below its floor, which is to be raised.
    layer->blobs()[layer->blobs().size() / 3]->mutable_cpu_data()[0] = -30;
    Numbers found = {this->Gradients(layer.get(), 2)};
    found.push_back(Copy(this->output_.cpu_data(), this->output_.count()));
    found.push_back(Copy(this->kl_.cpu_data(), 1));
    found.push_back(Copy(this->input_.cpu_diff(), this->input_.count()));
    const int n = layer->blobs().size() / 3;
    for (int i = 0; i < 3 * n; ++i) {
      const Blob<Dtype>& blob = *layer->blobs()[i];
      (i < 2 * n ? &found : noise)
          ->push_back(Copy(blob.cpu_data(), blob.count()));
    }
    return found;
  }

  // The noise to the bit, the rest but for rounding.
  void ExpectTheSame(const Shape& shape, const string& options, Phase phase) {
    SCOPED_TRACE(string(shape.type) + " " + shape.options + " " + options +
                 (phase == TRAIN ? "TRAIN" : "TEST"));
    const double tolerance = sizeof(Dtype) == 4 ? 2e-5 : 1e-12;
    Numbers cpu_noise, gpu_noise;
    const Numbers cpu = Run(Caffe::CPU, shape, options, phase, &cpu_noise);
    const Numbers gpu = Run(Caffe::GPU, shape, options, phase, &gpu_noise);
    EXPECT_EQ(cpu_noise, gpu_noise);
    ASSERT_EQ(cpu.size(), gpu.size());
    for (int i = 0; i < cpu.size(); ++i) {
      ASSERT_EQ(cpu[i].size(), gpu[i].size());
      double largest = 0, worst = 0;
      for (int j = 0; j < cpu[i].size(); ++j) {
        largest = std::max<double>(largest, std::fabs(cpu[i][j]));
        worst = std::max<double>(worst, std::fabs(cpu[i][j] - gpu[i][j]));
      }
      EXPECT_LE(worst, tolerance * largest) << "array " << i;
    }
  }
};
TYPED_TEST_CASE(DevicesTest, TestDtypes);

// Draw by draw.
TYPED_TEST(DevicesTest, ComputeTheSame) {
  vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  // More than one tile.
  shapes.push_back({kInner, {2, 100}, "num_output: 41"});
  for (const Shape& shape : shapes) {
    for (const string& way : WaysToDraw(shape)) {
      this->ExpectTheSame(shape, way, TRAIN);
    }
    this->ExpectTheSame(shape, "kl_ramp: 3 ", TRAIN);
    this->ExpectTheSame(shape, "", TEST);
    this->ExpectTheSame(shape, "sample: NEVER ", TRAIN);
    this->ExpectTheSame(shape, "sample: NEVER posterior: PER_WEIGHT ", TRAIN);
  }
}

// A prior that a file gives, for each kind of posterior.
TYPED_TEST(DevicesTest, ComputeTheSameWithAPriorFromAFile) {
  const Shape shape = {kInner, {2, 100}, "num_output: 41"};
  NetParameter net;
  this->SetUpLayer(shape, "kl_weight: 0 posterior: PER_OUTPUT")
      ->ToProto(net.add_layer());
  string file;
  MakeTempFilename(&file);
  WriteProtoToBinaryFile(net, file);
  for (const string& posterior : Posteriors(shape)) {
    this->ExpectTheSame(shape, posterior + "prior_from: '" + file + "' ",
                        TRAIN);
  }
}

// More tiles than blocks of threads.
TYPED_TEST(DevicesTest, ComputeTheSameForManyWeights) {
  const Shape shape = {kInner, {1, 1100}, "num_output: 1000"};
  for (const string& posterior : Posteriors(shape)) {
    this->ExpectTheSame(shape, posterior, TRAIN);
  }
  // More outputs than blocks.
  const Shape wide = {kInner, {1, 3}, "num_output: 1500"};
  this->ExpectTheSame(wide, "posterior: PER_OUTPUT ", TRAIN);
  const Shape transposed = {kInner, {1, 3}, "num_output: 1500 transpose: true"};
  this->ExpectTheSame(transposed, "posterior: PER_OUTPUT ", TRAIN);
}

// No sum depends on which thread comes first.
TYPED_TEST(DevicesTest, GiveTheSameBitsInEachRun) {
  const Shape shape = {kInner, {2, 100}, "num_output: 41"};
  for (const string& way : WaysToDraw(shape)) {
    vector<vector<TypeParam> > noise;
    const auto once = this->Run(Caffe::GPU, shape, way, TRAIN, &noise);
    EXPECT_EQ(once, this->Run(Caffe::GPU, shape, way, TRAIN, &noise));
  }
}

#endif  // CPU_ONLY

}  // namespace caffe
