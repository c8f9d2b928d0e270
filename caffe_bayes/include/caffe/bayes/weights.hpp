#ifndef CAFFE_BAYES_WEIGHTS_HPP_
#define CAFFE_BAYES_WEIGHTS_HPP_

// What one of many weights has to do with its tau, its prior and the loss. The
// CPU's loops and the kernels are given these by value.

#include "caffe/bayes/formulas.hpp"

namespace caffe {
namespace bayes {

/// Which weights have one tau: those of one group. With `inner` weights next to
/// each other, weight i is in group i / inner % groups.
struct Grouping {
  int groups, inner;
  BAYES_HD int Group(int i) const { return i / inner % groups; }
  /// Weight k of a group, in the order of the weights.
  BAYES_HD int Weight(int group, int k) const {
    return (k / inner * groups + group) * inner + k % inner;
  }
};

// The tau of weight i, in the two forms that a loop knows.
template <typename Dtype>
struct CommonTau {
  Dtype common;
  BAYES_HD Dtype tau(int) const { return common; }
};
template <typename Dtype>
struct OwnTau {
  const Dtype* taus;
  BAYES_HD Dtype tau(int i) const { return taus[i]; }
};

// The prior of weight i, in the two forms that it has; From(k) is that of
// the weights from k on.
template <typename Dtype>
struct CommonPrior {
  Dtype common_mean, common_std;
  BAYES_HD Dtype mean(int) const { return common_mean; }
  BAYES_HD Dtype std(int) const { return common_std; }
  CommonPrior From(int) const { return *this; }
};
template <typename Dtype>
struct OwnPrior {
  const Dtype* means;
  const Dtype* stds;
  BAYES_HD Dtype mean(int i) const { return means[i]; }
  BAYES_HD Dtype std(int i) const { return stds[i]; }
  OwnPrior From(int first) const { return {means + first, stds + first}; }
};

// The derivatives of the loss by the mean and by tau of weight i, given those
// by the weights that were drawn, or by the weights' variances. These are
// cleared once they are used, for the next Backward to add to.
template <typename Dtype>
struct SampleLoss {
  Dtype* w_diff;
  const Dtype* epsilon;
  BAYES_HD Dtype by_mean(int i, Dtype, Dtype tau) const {
    return MeanGradient(w_diff[i], tau, epsilon[i]);
  }
  BAYES_HD Dtype by_tau(int i, Dtype m, Dtype) const {
    return TauGradient(w_diff[i], m, epsilon[i]);
  }
  BAYES_HD void Clear(int i) const { w_diff[i] = 0; }
  SampleLoss From(int first) const { return {w_diff + first, epsilon + first}; }
};
template <typename Dtype>
struct VarianceLoss {
  Dtype* variance_diff;
  BAYES_HD Dtype by_mean(int i, Dtype m, Dtype tau) const {
    return VarianceMeanGradient(variance_diff[i], m, tau);
  }
  BAYES_HD Dtype by_tau(int i, Dtype m, Dtype tau) const {
    return VarianceTauGradient(variance_diff[i], m, tau);
  }
  BAYES_HD void Clear(int i) const { variance_diff[i] = 0; }
  VarianceLoss From(int first) const { return {variance_diff + first}; }
};

/// What the gradient of delta is made of: sums over the weights of its group.
struct TauSums {
  double by_tau = 0, sum_sq = 0;
  void Add(const TauSums& sums) {
    by_tau += sums.by_tau;
    sum_sq += sums.sum_sq;
  }
};

/// Adds what weight i contributes to the gradient of m, and to the two sums
/// that delta's is made of: of the derivative of the loss by tau, and of
/// (m / prior std)^2.
template <typename Dtype, typename Loss, typename Prior>
BAYES_HD void AddGradients(int i, bool learn_m, bool with_kl, Dtype tau,
                           Dtype kl_scale, const Loss& loss, const Prior& prior,
                           const Dtype* m, Dtype* m_diff, Dtype* by_tau,
                           Dtype* sum_sq) {
  *by_tau += loss.by_tau(i, m[i], tau);
  if (learn_m) m_diff[i] += loss.by_mean(i, m[i], tau);
  loss.Clear(i);
  if (with_kl) {
    *sum_sq += m[i] * m[i] * Precision(prior.std(i));
    if (learn_m) {
      m_diff[i] +=
          kl_scale * MeanKLGradient(m[i], tau, prior.mean(i), prior.std(i));
    }
  }
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_WEIGHTS_HPP_
