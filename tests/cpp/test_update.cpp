// The solver's update in one pass, by the CPU engine.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "caffe/sgd_solvers.hpp"
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
    solver_.reset(new SGDSolver<Dtype>(param));
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

  // Three updates against the formula, in double precision; options are numbers
  // that single precision has.
  //   g = clip / iter_size gradient + decay w   (or decay sign(w))
  //   h = momentum h + rate g;  w = w - h
  void ExpectFormula(const string& options, double momentum, double decay,
                     double iter_size, double clip, bool l1) {
    SCOPED_TRACE(options);
    MakeSolver(options);
    vector<vector<double> > w(kParams), h(kParams);
    for (int i = 0; i < kParams; ++i) {
      const Numbers<Dtype> start = Trial<Dtype>::Data(*Parameter(i));
      w[i].assign(start.begin(), start.end());
      h[i].assign(start.size(), 0);
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
          h[i][j] = momentum * h[i][j] + 0.125 * rates_[i] * g;
          w[i][j] -= h[i][j];
        }
      }
      solver_->ApplyUpdate();
      EXPECT_EQ(step + 1, solver_->iter());
      Results<Dtype> expected = State();
      for (int i = 0; i < kParams; ++i) {
        expected[2 * i].numbers.assign(w[i].begin(), w[i].end());
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
