// Bayesian layers in nets and solvers: what the net and the solver may and may
// not do to them, loading, sharing, dropout.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/net.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/util/io.hpp"
#include "expect_error.hpp"

namespace caffe {

template <typename TypeParam>
class BayesNetTest : public MultiDeviceTest<TypeParam> {
 protected:
  typedef typename TypeParam::Dtype Dtype;
  typedef shared_ptr<Net<Dtype> > NetPtr;

  BayesNetTest() { Caffe::set_random_seed(1701); }

  static NetPtr MakeNet(const string& layers, Phase phase = TRAIN) {
    NetParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(layers, &param));
    param.mutable_state()->set_phase(phase);
    return NetPtr(new Net<Dtype>(param));
  }

  // Four random inputs of two numbers, and as many targets.
  static string Data() {
    return "layer { name: 'data' type: 'DummyData' top: 'x' top: 'y'"
           " dummy_data_param { shape { dim: 4 dim: 2 } shape { dim: 4 dim: 3 }"
           " data_filler { type: 'gaussian' std: 1 }"
           " data_filler { type: 'gaussian' std: 1 } } }";
  }

  static string InnerProduct(const string& name, const string& type,
                             const string& bottom, const string& more) {
    return "layer { name: '" + name + "' type: '" + type + "' bottom: '" +
           bottom + "' top: '" + name +
           "' inner_product_param { num_output: 3"
           " weight_filler { type: 'gaussian' std: 1 }"
           " bias_filler { type: 'gaussian' std: 1 } } " +
           more + " }";
  }

  // A layer of a stock type, or of its Bayesian form, with weights and biases,
  // on what Data() and Indices() give; its top has the shape of y.
  static string Parametrised(const string& type, const string& prefix,
                             const string& name, const string& more) {
    if (type == "InnerProduct") {
      return InnerProduct(name, prefix + type, "x", more);
    }
    const string fillers =
        "filler { type: 'gaussian' std: 1 }"
        " bias_filler { type: 'gaussian' std: 1 } } ";
    const string options =
        type == "Embed"
            ? "bottom: 'i' embed_param { input_dim: 4 num_output: 3 weight_"
            : "bottom: 'y' scale_param { bias_term: true ";
    return "layer { name: '" + name + "' type: '" + prefix + type + "' top: '" +
           name + "' " + options + fillers + more + " }";
  }

  static string Indices() {
    return "layer { name: 'indices' type: 'DummyData' top: 'i'"
           " dummy_data_param { shape { dim: 4 } data_filler { value: 2 } } }";
  }

  static string Loss(const string& bottom, const string& weight = "1") {
    return "layer { name: 'loss' type: 'EuclideanLoss' bottom: '" + bottom +
           "' bottom: 'y' top: 'loss' loss_weight: " + weight + " }";
  }

  // A solver that trains `net`, and tests it too where the options say so.
  static shared_ptr<Solver<Dtype> > MakeSolver(const string& net,
                                               const string& options) {
    SolverParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "lr_policy: 'fixed' random_seed: 3 test_initialization: false"
        " snapshot_after_train: false " +
            options,
        &param));
    CHECK(google::protobuf::TextFormat::ParseFromString(
        net, param.mutable_net_param()));
    return shared_ptr<Solver<Dtype> >(
        SolverRegistry<Dtype>::CreateSolver(param));
  }

  // Writes a net as a caffemodel or in HDF5; returns the file.
  static string Save(const NetPtr& net, bool hdf5, bool diffs = false) {
    string file;
    MakeTempFilename(&file);
    if (hdf5) {
      net->ToHDF5(file, diffs);
    } else {
      NetParameter param;
      net->ToProto(&param, diffs);
      WriteProtoToBinaryFile(param, file);
    }
    return file;
  }

  static vector<Dtype> Values(const Blob<Dtype>& blob) {
    return vector<Dtype>(blob.cpu_data(), blob.cpu_data() + blob.count());
  }
  static vector<Dtype> Diffs(const Blob<Dtype>& blob) {
    return vector<Dtype>(blob.cpu_diff(), blob.cpu_diff() + blob.count());
  }
  static vector<Dtype> Output(const NetPtr& net, const string& blob) {
    net->Forward();
    return Values(*net->blob_by_name(blob));
  }
};
TYPED_TEST_CASE(BayesNetTest, TestDtypesAndDevices);

const char* const kTypes[] = {"InnerProduct", "Embed", "Scale"};

// Whatever the prototxt asks for.
TYPED_TEST(BayesNetTest, NoiseIsNeverLearnedAndDeltaNeverDecayed) {
  const string six =
      "param { lr_mult: 3 decay_mult: 7 } param { lr_mult: 4 decay_mult: 7 }"
      "param { lr_mult: 5 decay_mult: 7 } param { lr_mult: 6 decay_mult: 7 }"
      "param { lr_mult: 8 decay_mult: 7 } param { lr_mult: 9 decay_mult: 7 }";
  const auto net = this->MakeNet(
      this->Data() + this->InnerProduct("ip", "BayesInnerProduct", "x",
                                        six + "bayes_param { kl_weight: 0 }"));
  EXPECT_EQ(6, net->params().size());
  EXPECT_EQ(4, net->learnable_params().size());
  EXPECT_EQ(vector<float>({3, 4, 5, 6}), net->params_lr());
  EXPECT_EQ(vector<float>({7, 7, 0, 0}), net->params_weight_decay());
}

// With a loss of next to no weight there is nothing but decay: m shrinks, delta
// stays, and epsilon is the draw to the bit.
TYPED_TEST(BayesNetTest, SolverDecaysOnlyTheMeans) {
  typedef typename TypeParam::Dtype Dtype;
  const string net = this->Data() +
                     this->InnerProduct("ip", "BayesInnerProduct", "x",
                                        "param { } param { }"
                                        "param { decay_mult: 1 }"
                                        "param { decay_mult: 1 }"
                                        "bayes_param { kl_weight: 0 }") +
                     this->Loss("ip", "1e-30");
  for (const char* type :
       {"type: 'SGD' momentum: 0.9", "type: 'Adam' momentum: 0.9",
        "type: 'AdaDelta' momentum: 0.9 delta: 1e-6"}) {
    SCOPED_TRACE(type);
    const auto solver =
        this->MakeSolver(net, string("base_lr: 0.1 weight_decay: 0.5 ") + type);
    const auto& blobs = solver->net()->layer_by_name("ip")->blobs();
    vector<vector<Dtype> > before;
    for (const auto& blob : blobs) before.push_back(this->Values(*blob));
    solver->Step(3);
    for (int b : {0, 1}) EXPECT_NE(before[b], this->Values(*blobs[b]));
    for (int b : {2, 3}) EXPECT_EQ(before[b], this->Values(*blobs[b]));
    for (int b : {4, 5}) {
      vector<Dtype> noise(blobs[b]->count());
      bayes::FillNormal(bayes::MakeNoiseKey(3, "ip", b - 4), 2, 0, noise.size(),
                        noise.data());
      EXPECT_EQ(noise, this->Values(*blobs[b]));
    }
  }
}

// KL enters once for an iteration, however many batches it is made of.
TYPED_TEST(BayesNetTest, IterSizeLeavesTheWeightOfKL) {
  typedef typename TypeParam::Dtype Dtype;
  const string net =
      this->Data() +
      this->InnerProduct(
          "ip", "BayesInnerProduct", "x",
          "bayes_param { kl_weight: 5 dataset_size: 10 prior_std: 1 }") +
      this->Loss("ip", "1e-30");
  vector<vector<Dtype> > means;
  for (const char* iter_size : {"1", "4"}) {
    const auto solver =
        this->MakeSolver(net, string("base_lr: 0.1 iter_size: ") + iter_size);
    solver->Step(2);
    means.push_back(
        this->Values(*solver->net()->layer_by_name("ip")->blobs()[0]));
  }
  for (int i = 0; i < means[0].size(); ++i) {
    EXPECT_NEAR(means[0][i], means[1][i], 1e-5);
  }
}

TYPED_TEST(BayesNetTest, StockWeightsLoadIntoABayesianNetAndBack) {
  typedef typename TypeParam::Dtype Dtype;
  for (const char* type : kTypes) {
    SCOPED_TRACE(type);
    const string data = this->Data() + this->Indices();
    const string stock = data + this->Parametrised(type, "", "ip", "");
    const string bayes =
        data + this->Parametrised(
                   type, "Bayes", "ip",
                   "bayes_param { kl_weight: 0 tau_init: 0.3 sample: NEVER }");
    const auto trained = this->MakeNet(stock);
    const auto made_bayes = this->MakeNet(bayes);
    const auto back = this->MakeNet(stock);
    const auto blobs = [](const shared_ptr<Net<Dtype> >& net) {
      return net->layer_by_name("ip")->blobs();
    };
    for (bool hdf5 : {false, true}) {
      SCOPED_TRACE(hdf5 ? "HDF5" : "binary");
      const auto copy = [&](const shared_ptr<Net<Dtype> >& from,
                            const shared_ptr<Net<Dtype> >& to) {
        to->CopyTrainedLayersFrom(this->Save(from, hdf5));
      };
      trained->layer_by_name("ip")->blobs()[0]->mutable_cpu_data()[0] += 1;
      copy(trained, made_bayes);
      copy(made_bayes, back);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(this->Values(*blobs(trained)[i]),
                  this->Values(*blobs(made_bayes)[i]));
        EXPECT_EQ(this->Values(*blobs(trained)[i]),
                  this->Values(*blobs(back)[i]));
      }
      EXPECT_NEAR(0.3, bayes::Softplus(blobs(made_bayes)[2]->cpu_data()[0]),
                  1e-6);
    }
  }
}

// Files with the noise, as all were before, and files without it load alike.
TYPED_TEST(BayesNetTest, APosteriorLoadsWithAndWithoutItsNoise) {
  for (const char* type : kTypes) {
    for (const string noise : {"", " save_noise: true"}) {
      for (bool hdf5 : {false, true}) {
        SCOPED_TRACE(type + noise + (hdf5 ? " HDF5" : " binary"));
        const string text =
            this->Data() + this->Indices() +
            this->Parametrised(type, "Bayes", "ip",
                               "bayes_param { kl_weight: 0" + noise + " }");
        const auto trained = this->MakeNet(text), loaded = this->MakeNet(text);
        const auto& blobs = trained->layer_by_name("ip")->blobs();
        for (const auto& blob : blobs) blob->mutable_cpu_data()[0] -= 2;
        loaded->CopyTrainedLayersFrom(this->Save(trained, hdf5, true));
        for (int i = 0; i < blobs.size() / 3 * 2; ++i) {
          EXPECT_EQ(this->Values(*blobs[i]),
                    this->Values(*loaded->layer_by_name("ip")->blobs()[i]));
        }
      }
    }
  }
}

TYPED_TEST(BayesNetTest, NoiseIsSavedOnRequest) {
  typedef typename TypeParam::Dtype Dtype;
  const auto inner_product = [&](const string& options) {
    return this->MakeNet(
        this->Data() +
        "layer { name: 'ip' type: 'BayesInnerProduct' bottom: 'x' top: 'ip'"
        " inner_product_param { num_output: 10000 }"
        " bayes_param { kl_weight: 0 " +
        options + " } }");
  };
  // 20,000 weights and 10,000 biases.
  const double parameters = 30000 * sizeof(Dtype);
  for (bool hdf5 : {false, true}) {
    for (bool diffs : {false, true}) {
      SCOPED_TRACE(string(hdf5 ? "HDF5" : "binary") + (diffs ? " diffs" : ""));
      const auto size = [&](const string& options) {
        return boost::filesystem::file_size(
            this->Save(inner_product(options), hdf5, diffs));
      };
      const double without = parameters * (1 + diffs);
      EXPECT_NEAR(without, size(""), 0.1 * without);
      EXPECT_NEAR(2 * without, size("save_noise: true"), 0.1 * without);
    }
  }
}

// HDF5 has no copy of what another layer owns.
TYPED_TEST(BayesNetTest, SharedMeansLoadFromHDF5) {
  const string options =
      "param { name: 'm' } param { name: 'm_b' } bayes_param { kl_weight: 0 }";
  const string text =
      this->Data() +
      this->InnerProduct("a", "BayesInnerProduct", "x", options) +
      this->InnerProduct("b", "BayesInnerProduct", "x", options);
  const auto trained = this->MakeNet(text), loaded = this->MakeNet(text);
  for (const char* name : {"a", "b"}) {
    trained->layer_by_name(name)->blobs()[0]->mutable_cpu_data()[1] += 1;
    trained->layer_by_name(name)->blobs()[2]->mutable_cpu_data()[0] -= 2;
  }
  loaded->CopyTrainedLayersFrom(this->Save(trained, true));
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(this->Values(*trained->layer_by_name(name)->blobs()[i]),
                this->Values(*loaded->layer_by_name(name)->blobs()[i]))
          << name << i;
    }
  }
}

TYPED_TEST(BayesNetTest, OtherNumbersOfBlobsAreStillRefused) {
  const auto source = this->MakeNet(
      this->Data() + this->InnerProduct("ip", "InnerProduct", "x", ""));
  NetParameter param;
  source->ToProto(&param);
  param.mutable_layer(1)->mutable_blobs()->RemoveLast();
  const auto net = this->MakeNet(
      this->Data() + this->InnerProduct("ip", "BayesInnerProduct", "x",
                                        "bayes_param { kl_weight: 0 }"));
  EXPECT_ERROR(net->CopyTrainedLayersFrom(param),
               "Incompatible number of blobs for layer ip: 1 in the file, 6");
}

// Two layers with the same param names are one posterior: the same weights in
// each draw, and its KL once.
TYPED_TEST(BayesNetTest, SharedParamsAreOnePosterior) {
  const string more =
      "param { name: 'm' } param { name: 'm_b' } param { name: 'd' }"
      "param { name: 'd_b' }"
      "bayes_param { kl_weight: 5 dataset_size: 10 prior_std: 1 }";
  const string data = this->Data() + this->Indices();
  for (const char* type : kTypes) {
    SCOPED_TRACE(type);
    const string a =
        this->Parametrised(type, "Bayes", "a", more + " top: 'kl_a'");
    const string b =
        this->Parametrised(type, "Bayes", "b", more + " top: 'kl_b'");
    const auto single = this->MakeNet(data + a + this->Loss("a", "1e-30"));
    const auto twice = this->MakeNet(
        data + a + b +
        "layer { name: 'sum' type: 'Eltwise' bottom: 'a' bottom: 'b' top: 's' "
        "}" +
        this->Loss("s", "1e-30"));
    for (int i = 0; i < 4; ++i) {
      single->layer_by_name("a")->blobs()[i]->CopyFrom(
          *twice->layer_by_name("a")->blobs()[i]);
    }
    for (const auto& net : {single, twice}) {
      net->ClearParamDiffs();
      net->Forward();
      net->Backward();
    }
    EXPECT_EQ(this->Values(*twice->blob_by_name("a")),
              this->Values(*twice->blob_by_name("b")));
    EXPECT_EQ(0, twice->blob_by_name("kl_b")->cpu_data()[0]);
    EXPECT_EQ(single->blob_by_name("kl_a")->cpu_data()[0],
              twice->blob_by_name("kl_a")->cpu_data()[0]);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(this->Diffs(*single->layer_by_name("a")->blobs()[i]),
                this->Diffs(*twice->layer_by_name("a")->blobs()[i]))
          << "blob " << i;
    }
    // The owner, and nobody else, counts it, whichever layer is asked.
    const auto layers = bayes::Uncertainties(*twice);
    ASSERT_EQ(2, layers.size());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(layers[0].uncertainty.taus[i].median,
                layers[1].uncertainty.taus[i].median);
    }
    EXPECT_GT(layers[0].uncertainty.kl, 0);
    EXPECT_EQ(0, layers[1].uncertainty.kl);
  }
}

// The net knows the owner; names need not differ as their noise does.
TYPED_TEST(BayesNetTest, ALayerThatSharesOnlyItsBiasesOwnsItsWeights) {
  const string more =
      "param { } param { name: 'm_b' } param { } param { name: 'd_b' }"
      "bayes_param { kl_weight: 5 dataset_size: 10 }";
  const auto net = this->MakeNet(
      this->Data() + this->Parametrised("InnerProduct", "Bayes", "a", more) +
      this->Parametrised("InnerProduct", "Bayes", "b", more));
  const auto layers = bayes::Uncertainties(*net);
  const auto weights_kl = [&](const string& name) {
    const auto& blobs = net->layer_by_name(name)->blobs();
    double kl = 0;
    for (double m : this->Values(*blobs[0])) {
      kl += bayes::WeightKL<double>(m, 0.4, 0, 5);
    }
    return kl;
  };
  EXPECT_NEAR(weights_kl("b"), layers[1].uncertainty.kl, 1e-4);
  EXPECT_GT(layers[0].uncertainty.kl, weights_kl("a") + 1);
}

// A test net shares its blobs with the training net, epsilon too; testing
// between two iterations changes nothing of what is trained.
TYPED_TEST(BayesNetTest, TestingDoesNotDisturbTraining) {
  typedef typename TypeParam::Dtype Dtype;
  const string net =
      "layer { name: 'data' type: 'DummyData' top: 'x' top: 'y'"
      " dummy_data_param { shape { dim: 4 dim: 2 } shape { dim: 4 dim: 3 }"
      " data_filler { value: 1 } data_filler { value: 2 } } }" +
      this->InnerProduct("ip", "BayesInnerProduct", "x",
                         "bayes_param { kl_weight: 1 dataset_size: 10 }") +
      this->Loss("ip");
  vector<vector<Dtype> > means;
  for (const char* interval : {"1000", "1"}) {
    const auto solver = this->MakeSolver(
        net, string("base_lr: 0.01 test_iter: 2 test_interval: ") + interval);
    solver->Step(5);
    means.push_back(
        this->Values(*solver->net()->layer_by_name("ip")->blobs()[0]));
  }
  EXPECT_EQ(means[0], means[1]);
}

TYPED_TEST(BayesNetTest, DropoutAtTestTimeIsPartOfTheDraw) {
  typedef typename TypeParam::Dtype Dtype;
  const string layers =
      "layer { name: 'ones' type: 'DummyData' top: 'x' dummy_data_param {"
      " shape { dim: 3 dim: 10000 }"
      " data_filler { type: 'constant' value: 1 } } }"
      "layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'out'"
      " dropout_param { dropout_ratio: 0.3 ";
  const auto plain = this->MakeNet(layers + "} }", TEST);
  EXPECT_EQ(vector<Dtype>(30000, 1), this->Output(plain, "out"));
  const auto net =
      this->MakeNet(layers + "sample_weights_test: true } }", TEST);
  const vector<Dtype> first = this->Output(net, "out");
  double dropped = 0;
  for (int i = 0; i < 10000; ++i) {
    EXPECT_TRUE(first[i] == 0 || std::fabs(first[i] - 1 / 0.7) < 1e-6);
    dropped += first[i] == 0;
    // One network for all images.
    EXPECT_EQ(first[i], first[10000 + i]);
    EXPECT_EQ(first[i], first[20000 + i]);
  }
  EXPECT_NEAR(0.3, dropped / 10000, 4 * std::sqrt(0.3 * 0.7 / 10000));
  EXPECT_NE(first, this->Output(net, "out"));
  bayes::SetDraw(*net, 0);
  EXPECT_EQ(first, this->Output(net, "out"));
}

TYPED_TEST(BayesNetTest, DropoutInTrainingHasAMaskForEachImage) {
  typedef typename TypeParam::Dtype Dtype;
  const auto net = this->MakeNet(
      "layer { name: 'ones' type: 'DummyData' top: 'x' dummy_data_param {"
      " shape { dim: 2 dim: 1000 }"
      " data_filler { type: 'constant' value: 1 } } }"
      "layer { name: 'drop' type: 'Dropout' bottom: 'x' top: 'out' }");
  bayes::SetDraw(*net, 4);
  const vector<Dtype> first = this->Output(net, "out");
  EXPECT_FALSE(
      std::equal(first.begin(), first.begin() + 1000, first.begin() + 1000));
  bayes::SetDraw(*net, 4);
  EXPECT_EQ(first, this->Output(net, "out"));
  EXPECT_NE(first, this->Output(net, "out"));
}

// However the images are divided, and whether or not a layer writes where they
// come in: draw k is the net that draw k of a forward pass is.
TYPED_TEST(BayesNetTest, MonteCarloGivesWhatForwardGives) {
  typedef typename TypeParam::Dtype Dtype;
  const int kImages = 70, kBatch = 4, kDraws = 3;
  for (const string first : {"top: 'x'", "top: 'dropped'"}) {
    SCOPED_TRACE(first);
    const auto net = this->MakeNet(
        "layer { name: 'x' type: 'Input' top: 'x'"
        "        input_param { shape { dim: 4 dim: 2 dim: 5 dim: 5 } } }"
        "layer { name: 'drop' type: 'Dropout' bottom: 'x' " +
            first +
            "        dropout_param { sample_weights_test: true } }"
            "layer { name: 'conv' type: 'BayesConvolution' bottom: " +
            first.substr(5) +
            "        top: 'conv' convolution_param { num_output: 3 "
            "kernel_size: 3"
            "        weight_filler { type: 'xavier' } }"
            "        bayes_param { kl_weight: 0 } }"
            "layer { name: 'scale' type: 'BayesScale' bottom: 'conv'"
            "        top: 'conv' scale_param { bias_term: true"
            "        bias_filler { value: 0.7 } }"
            "        bayes_param { kl_weight: 0 bias_tau_init: 0.5 } }" +
            this->InnerProduct("ip", "BayesInnerProduct", "conv",
                               "bayes_param { kl_weight: 0 }"),
        TEST);
    vector<Dtype> images(kImages * 50), found(kDraws * kImages * 3);
    for (int i = 0; i < images.size(); ++i) images[i] = (i * 37 % 101) - 50;
    bayes::MonteCarlo<Dtype> monte_carlo(net.get(), "ip");
    const auto source = [&](int first, int) { return &images[first * 50]; };
    ASSERT_TRUE(monte_carlo.Run({5, 0, 2}, kImages, {{"x", source}}, {},
                                found.data(), [](double) { return true; }));
    int k = 0;
    for (int draw : {5, 0, 2}) {
      for (int i = 0; i < kImages; i += kBatch) {
        const int now = std::min(kBatch, kImages - i);
        std::copy_n(&images[i * 50], now * 50,
                    net->blob_by_name("x")->mutable_cpu_data());
        bayes::SetDraw(*net, draw);
        const vector<Dtype> expected = this->Output(net, "ip");
        for (int j = 0; j < now * 3; ++j, ++k) {
          EXPECT_NEAR(expected[j], found[k],
                      1e-5 * (1 + std::fabs(expected[j])))
              << "draw " << draw << ", image " << i + j / 3;
        }
      }
    }
  }
}

#ifndef CPU_ONLY

// A training is the same on each device: the same noise and masks, and so, but
// for rounding, the same parameters after some iterations.
TYPED_TEST(BayesNetTest, DevicesTrainTheSameNet) {
  typedef typename TypeParam::Dtype Dtype;
  const string bayes =
      "kl_weight: 0.3 dataset_size: 50 prior_std: 1 tau_init: 0.5";
  const string net =
      "layer { name: 'data' type: 'DummyData' top: 'x' top: 'y'"
      " dummy_data_param { shape { dim: 6 dim: 2 dim: 6 dim: 6 }"
      " shape { dim: 6 dim: 3 } data_filler { type: 'gaussian' std: 1 }"
      " data_filler { type: 'gaussian' std: 1 } } }"
      "layer { name: 'conv' type: 'BayesConvolution' bottom: 'x' top: 'conv'"
      " convolution_param { num_output: 4 kernel_size: 3"
      " weight_filler { type: 'xavier' } }"
      " bayes_param { draws_per_batch: 4 " +
      bayes +
      " } }"
      "layer { name: 'scale' type: 'BayesScale' bottom: 'conv' top: 'conv'"
      " scale_param { bias_term: true bias_filler { value: 0.5 } }"
      " bayes_param { draws_per_batch: 3 " +
      bayes +
      " } }"
      "layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }"
      "layer { name: 'drop' type: 'Dropout' bottom: 'conv' top: 'conv' }" +
      this->InnerProduct(
          "local", "BayesInnerProduct", "conv",
          "bayes_param { local_reparametrization: true " + bayes + " }") +
      this->InnerProduct("ip", "BayesInnerProduct", "local",
                         "top: 'kl' loss_weight: 0 loss_weight: 1"
                         " bayes_param { " +
                             bayes + " }") +
      "layer { name: 'indices' type: 'DummyData' top: 'i'"
      " dummy_data_param { shape { dim: 6 } data_filler { value: 2 } } }"
      "layer { name: 'embed' type: 'BayesEmbed' bottom: 'i' top: 'embed'"
      " embed_param { input_dim: 4 num_output: 3"
      " weight_filler { type: 'gaussian' std: 1 } }"
      " bayes_param { draws_per_batch: 2 " +
      bayes +
      " } }"
      "layer { name: 'sum' type: 'Eltwise' bottom: 'ip' bottom: 'embed'"
      " top: 'sum' }" +
      this->Loss("sum");
  vector<vector<Dtype> > trained[2];
  for (int device = 0; device < 2; ++device) {
    Caffe::set_mode(device == 0 ? Caffe::CPU : Caffe::GPU);
    const auto solver = this->MakeSolver(
        net,
        "base_lr: 0.001 momentum: 0.9 weight_decay: 0.01 iter_size: 2"
        " type: 'SGD'");
    solver->Step(5);
    for (const auto& layer : solver->net()->layers()) {
      for (const auto& blob : layer->blobs()) {
        trained[device].push_back(this->Values(*blob));
      }
    }
  }
  ASSERT_EQ(30, trained[0].size());
  for (int b = 0; b < trained[0].size(); ++b) {
    for (int i = 0; i < trained[0][b].size(); ++i) {
      ASSERT_TRUE(std::isfinite(trained[0][b][i]));
      EXPECT_NEAR(trained[0][b][i], trained[1][b][i],
                  1e-4 * (1 + std::fabs(trained[0][b][i])))
          << "blob " << b << ", number " << i;
    }
  }
}

#endif  // CPU_ONLY

}  // namespace caffe
