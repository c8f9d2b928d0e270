// The solver's update in one pass, by the CPU engine.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "caffe/sgd_solvers.hpp"
#include "caffe/solver_factory.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "engine_trial.hpp"

namespace caffe {

// A solver of a net with three parameters of different rates and decays, whose
// gradients the test makes up.
template <typename Dtype>
class UpdateTest : public CPUDeviceTest<Dtype> {
 protected:
  static const int kParams = 3;
  // Two more than one thread takes at a time.
  static const int kOutputs = 2, kInputs = (1 << 14) + 1;
  const double rates_[kParams] = {1, 2.5, 0}, decays_[kParams] = {1, 0.5, 3};

  void MakeSolver(const string& options) {
    SolverParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "base_lr: 0.125 lr_policy: 'fixed' random_seed: 1 " + options, &param));
    const string product =
        " inner_product_param { num_output: " + std::to_string(kOutputs) +
        " weight_filler { type: 'gaussian' std: 1 } }";
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "layer { name: 'x' type: 'Input' top: 'x' input_param {"
        " shape { dim: 1 dim: " +
            std::to_string(kInputs) +
            " } } }"
            "layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'" +
            product +
            " param { lr_mult: 1 decay_mult: 1 }"
            " param { lr_mult: 2.5 decay_mult: 0.5 } }"
            "layer { name: 'b' type: 'InnerProduct' bottom: 'a' top: 'b'" +
            product +
            " param { lr_mult: 0 decay_mult: 3 } param { lr_mult: 0 } }",
        param.mutable_net_param()));
    if (!param.has_type()) param.set_type("SGD");
    solver_.reset(dynamic_cast<SGDSolver<Dtype>*>(
        SolverRegistry<Dtype>::CreateSolver(param)));
  }

  Blob<Dtype>* Parameter(int i) {
    return solver_->net()->learnable_params()[i];
  }

  void MakeGradients(int seed) {
    for (int i = 0; i < solver_->net()->learnable_params().size(); ++i) {
      FillNormal(seed + i, Parameter(i)->count(),
                 Parameter(i)->mutable_cpu_diff());
    }
  }

  Results<Dtype> State() {
    Results<Dtype> state;
    for (int i = 0; i < kParams; ++i) {
      const string name = "parameter " + std::to_string(i);
      state.push_back({name, Trial<Dtype>::Data(*Parameter(i)), 0});
      state.push_back(
          {name + "'s history", Trial<Dtype>::Data(*solver_->history()[i]), 0});
    }
    return state;
  }

  double GradientNorm() {
    long double sum = 0;
    for (Blob<Dtype>* blob : solver_->net()->learnable_params()) {
      for (long double x : Trial<Dtype>::Diff(*blob)) sum += x * x;
    }
    return std::sqrt(sum);
  }

  // The step of a weight: from its gradient, its rate, the number of the step
  // (0, 1, 2) and two numbers that it remembers, h and v.
  typedef std::function<double(double gradient, double rate, int step,
                               double* h, double* v)>
      Rule;

  static Rule Momentum(double momentum) {
    return [=](double gradient, double rate, int, double* h, double*) {
      return *h = momentum * *h + rate * gradient;
    };
  }

  void ExpectFormula(const string& options, double momentum, double decay,
                     double iter_size, double clip, bool l1) {
    ExpectRule(options, Momentum(momentum), decay, iter_size, clip, l1);
  }

  // Three updates against the formula, in double precision; options are numbers
  // that single precision has.
  //   g = clip / iter_size gradient + decay w   (or decay sign(w))
  //   w = w - rule(g)
  void ExpectRule(const string& options, const Rule& rule, double decay,
                  double iter_size, double clip, bool l1) {
    SCOPED_TRACE(options);
    MakeSolver(options);
    vector<vector<double> > w(kParams), h(kParams), v(kParams);
    for (int i = 0; i < kParams; ++i) {
      const Numbers<Dtype> start = Trial<Dtype>::Data(*Parameter(i));
      w[i].assign(start.begin(), start.end());
      h[i].assign(start.size(), 0);
      v[i].assign(start.size(), 0);
    }
    const Numbers<Dtype> frozen = Trial<Dtype>::Data(*Parameter(2));
    for (int step = 0; step < 3; ++step) {
      MakeGradients(10 * step);
      const double norm = GradientNorm();
      const double scale =
          (clip > 0 && norm > clip ? clip / norm : 1) / iter_size;
      for (int i = 0; i < kParams; ++i) {
        for (int j = 0; j < w[i].size(); ++j) {
          const double pull = l1 ? (w[i][j] > 0) - (w[i][j] < 0) : w[i][j];
          const double g =
              scale * Parameter(i)->cpu_diff()[j] + decay * decays_[i] * pull;
          w[i][j] -= rule(g, 0.125 * rates_[i], step, &h[i][j], &v[i][j]);
        }
      }
      solver_->ApplyUpdate();
      EXPECT_EQ(step + 1, solver_->iter());
      Results<Dtype> expected = State();
      for (int i = 0; i < kParams; ++i) {
        expected[2 * i].numbers.assign(w[i].begin(), w[i].end());
        // What does not learn need not remember.
        if (rates_[i] == 0) continue;
        expected[2 * i + 1].numbers.assign(h[i].begin(), h[i].end());
      }
      ExpectClose<Dtype>(expected, State(), EngineTolerance<Dtype>());
    }
    EXPECT_EQ(frozen, Trial<Dtype>::Data(*Parameter(2)));
  }

  shared_ptr<SGDSolver<Dtype> > solver_;
};
TYPED_TEST_CASE(UpdateTest, TestDtypes);

TYPED_TEST(UpdateTest, IsTheFormula) {
  this->ExpectFormula("", 0, 0, 1, 0, false);
  this->ExpectFormula("momentum: 0.875", 0.875, 0, 1, 0, false);
  this->ExpectFormula("weight_decay: 0.25", 0, 0.25, 1, 0, false);
  this->ExpectFormula("momentum: 0.875 weight_decay: 0.25 iter_size: 4", 0.875,
                      0.25, 4, 0, false);
  this->ExpectFormula("momentum: 0.875 weight_decay: 0.25 clip_gradients: 7",
                      0.875, 0.25, 1, 7, false);
  this->ExpectFormula("clip_gradients: 1e9", 0, 0, 1, 1e9, false);
  this->ExpectFormula(
      "momentum: 0.5 weight_decay: 0.25 regularization_type: 'L1' iter_size: 2",
      0.5, 0.25, 2, 0, true);
}

// With the formulas of the papers, as far as Caffe follows them.
TYPED_TEST(UpdateTest, OtherSolversAreTheirFormulas) {
  const auto expect = [&](const string& options,
                          const typename TestFixture::Rule& rule) {
    this->ExpectRule(options, rule, 0, 1, 0, false);
    this->ExpectRule(
        options + " weight_decay: 0.25 iter_size: 4 clip_gradients: 7", rule,
        0.25, 4, 7, false);
  };
  expect("type: 'Nesterov' momentum: 0.875",
         [](double g, double rate, int, double* h, double*) {
           const double before = *h;
           *h = 0.875 * before + rate * g;
           return 1.875 * *h - 0.875 * before;
         });
  expect("type: 'AdaGrad' delta: 0.125",
         [](double g, double rate, int, double* h, double*) {
           *h += g * g;
           return rate * g / (std::sqrt(*h) + 0.125);
         });
  expect("type: 'RMSProp' rms_decay: 0.75 delta: 0.125",
         [](double g, double rate, int, double* h, double*) {
           *h = 0.75 * *h + 0.25 * g * g;
           return rate * g / (std::sqrt(*h) + 0.125);
         });
  expect("type: 'Adam' momentum: 0.875 momentum2: 0.9990234375 delta: 0.125",
         [](double g, double rate, int step, double* h, double* v) {
           const double beta2 = 0.9990234375;
           *h = 0.875 * *h + 0.125 * g;
           *v = beta2 * *v + (1 - beta2) * g * g;
           rate *= std::sqrt(1 - std::pow(beta2, step + 1)) /
                   (1 - std::pow(0.875, step + 1));
           return rate * *h / (std::sqrt(*v) + 0.125);
         });
}

TYPED_TEST(UpdateTest, SameBitsForAnyNumberOfThreads) {
  Results<TypeParam> alone;
  for (int threads : {1, 2, 3, 5}) {
    const WithThreads with_threads(threads);
    this->MakeSolver("momentum: 0.875 weight_decay: 0.25 clip_gradients: 7");
    for (int step = 0; step < 2; ++step) {
      this->MakeGradients(step);
      this->solver_->ApplyUpdate();
    }
    if (threads == 1) alone = this->State();
    ExpectSameBits(alone, this->State());
  }
}

}  // namespace caffe
