#include "caffe/bayes/bayes_param.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

namespace {

class Checker {
 public:
  explicit Checker(const LayerParameter& layer) : layer_(layer) {}

  template <typename Value>
  void Require(bool holds, const char* field, const Value& value,
               const std::string& allowed) const {
    CHECK(holds) << "layer '" << layer_.name() << "': bayes_param." << field
                 << " is " << value << ", but must be " << allowed;
  }
  void Finite(const char* field, float value) const {
    Require(std::isfinite(value), field, value, "a finite number");
  }
  void Positive(const char* field, float value) const {
    Require(value > 0 && std::isfinite(value), field, value,
            "a finite number greater than 0");
  }
  void AboveFloor(const char* field, float value) const {
    const float floor = layer_.bayes_param().tau_min();
    Require(value >= floor && std::isfinite(value), field, value,
            "a finite number not below tau_min = " + std::to_string(floor));
  }

 private:
  const LayerParameter& layer_;
};

void CheckPosterior(const BayesParameter& param, const Checker& check) {
  check.Finite("prior_mean", param.prior_mean());
  check.Finite("bias_prior_mean", param.bias_prior_mean());
  check.Positive("prior_std", param.prior_std());
  check.Positive("bias_prior_std", param.bias_prior_std());
  for (bool is_set : {param.has_prior_mean(), param.has_bias_prior_mean()}) {
    check.Require(!is_set || !param.has_prior_from(), "prior_from",
                  "\"" + param.prior_from() + "\"",
                  "the only source of means: leave out prior_mean and "
                  "bias_prior_mean");
  }
  check.Require(param.has_prior_from() || !param.has_prior_scale(),
                "prior_scale", param.prior_scale(),
                "left out without prior_from");
  check.Positive("prior_scale", param.prior_scale());
  check.Positive("prior_std_min", param.prior_std_min());
  check.Positive("tau_min", param.tau_min());
  check.AboveFloor("tau_init", param.tau_init());
  check.AboveFloor("bias_tau_init", param.bias_tau_init());
}

void CheckObjective(const BayesParameter& param, const Checker& check) {
  const float weight = param.kl_weight();
  check.Require(weight >= 0 && std::isfinite(weight), "kl_weight", weight,
                "a finite number, 0 or greater");
  check.Require(param.has_dataset_size() || weight == 0, "dataset_size",
                "missing",
                "the number of training examples, as kl_weight is set");
  check.Require(!param.has_dataset_size() || param.dataset_size() > 0,
                "dataset_size", param.dataset_size(),
                "the number of training examples, 1 or more");
  check.Require(param.kl_ramp() >= 0, "kl_ramp", param.kl_ramp(),
                "a number of forward passes, 0 or greater");
}

}  // namespace

double DefaultKLScale(int64_t weights, int64_t examples) {
  const double strength = 0.017, highest = 1e-6;
  const double many = 60000, power = 2. / 3, most = 9;
  const double for_few = examples > 0 ? std::pow(many / examples, power) : 1;
  return std::min(strength / weights, highest) *
         std::min(std::max(for_few, 1.), most);
}

void CheckBayesParam(const LayerParameter& layer, const LayerTrait& trait,
                     int bottom_axes) {
  const BayesParameter& param = layer.bayes_param();
  const Checker check(layer);
  CheckPosterior(param, check);
  CheckObjective(param, check);
  const auto draws = [&](bool holds, const char* allowed) {
    check.Require(holds, "draws_per_batch", param.draws_per_batch(), allowed);
  };
  check.Require(param.posterior() != BayesParameter_Posterior_PER_OUTPUT ||
                    trait.output_axis(layer) != kNoOutputAxis,
                "posterior", "PER_OUTPUT",
                "SHARED or PER_WEIGHT in a layer of type " + layer.type() +
                    " whose group is not 1");
  draws(param.draws_per_batch() > 0, "1 or more");
  draws(param.draws_per_batch() == 1 ||
            trait.TreatsItemsAlone(layer, bottom_axes),
        "1 where axis is 0, which leaves no batch to divide");
  if (!param.local_reparametrization()) return;
  check.Require(trait.has_independent_outputs, "local_reparametrization",
                "true",
                "false in a layer of type " + layer.type() +
                    "; use draws_per_batch, which any layer has");
  draws(param.draws_per_batch() == 1,
        "1 with local_reparametrization, which gives each image its own noise");
}

}  // namespace bayes
}  // namespace caffe
