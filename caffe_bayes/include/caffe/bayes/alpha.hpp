#ifndef CAFFE_BAYES_ALPHA_HPP_
#define CAFFE_BAYES_ALPHA_HPP_

#include <cfloat>

#include "caffe/bayes/host_device.hpp"

namespace caffe {
namespace bayes {

/**
 * The loss of one image of which `draws` draws say how probable its label is:
 *
 *     -1/alpha log( mean over k of p_k^alpha )
 *
 * It is the mean of -log p_k where alpha is 0, and -log of the mean of p_k
 * where it is 1. As in Caffe's own loss, p_k is at least the least normal
 * float.
 *
 * `p` points to the first probability, `p_step` from one to the next. share[k *
 * share_step] becomes the share of draw k in the gradient, p_k^alpha / sum over
 * j of p_j^alpha: the derivative of the loss with respect to -log p_k.
 */
template <typename Dtype>
BAYES_HD Dtype AlphaLoss(int draws, Dtype alpha, const Dtype* p, int p_step,
                         Dtype* share, int share_step) {
  const Dtype least = FLT_MIN;
  Dtype greatest = log(least);
  Dtype sum = 0;
  for (int k = 0; k < draws; ++k) {
    const Dtype p_k = p[k * p_step];
    const Dtype log_p = log(p_k > least ? p_k : least);
    share[k * share_step] = log_p;
    sum += log_p;
    if (log_p > greatest) greatest = log_p;
  }
  // Of p_k / greatest, so that no power is too small; and minus 1, so that
  // nothing is lost where alpha is small.
  Dtype sum_of_powers = 0;
  for (int k = 0; k < draws; ++k) {
    Dtype* const log_p = &share[k * share_step];
    *log_p = expm1(alpha * (*log_p - greatest));
    sum_of_powers += *log_p;
  }
  for (int k = 0; k < draws; ++k) {
    Dtype* const power = &share[k * share_step];
    *power = (*power + 1) / (sum_of_powers + draws);
  }
  return alpha > 0 ? -greatest - log1p(sum_of_powers / draws) / alpha
                   : -sum / draws;
}

/**
 * The scores of a batch: `draws` times `labels`, each of `classes` classes. A
 * label belongs to an image, or to one of its `places`. Label i = n * places +
 * j has, for each draw k, the class probabilities at image k * images + n,
 * place j, and a share.
 */
template <typename Dtype>
struct AlphaBatch {
  int draws, labels, classes, places;
  Dtype alpha;
  bool has_ignored;
  int ignored;
  const Dtype* label;
  const Dtype* probabilities;
  Dtype* shares;

  BAYES_HD bool IsIgnored(int i) const {
    return has_ignored && static_cast<int>(label[i]) == ignored;
  }
  /// Where the probability of the first class is. The next is `places` behind
  /// it, that of the next draw labels * classes.
  BAYES_HD int First(int i) const {
    return i / places * classes * places + i % places;
  }

  /// Writes the shares of label i, and returns its loss.
  BAYES_HD Dtype Forward(int i) const {
    if (IsIgnored(i)) {
      for (int k = 0; k < draws; ++k) shares[k * labels + i] = 0;
      return 0;
    }
    const int place = First(i) + static_cast<int>(label[i]) * places;
    return AlphaLoss(draws, alpha, probabilities + place, labels * classes,
                     shares + i, labels);
  }

  /// Writes the gradient of the scores of label i, times `scale`.
  BAYES_HD void Backward(int i, Dtype scale, Dtype* diff) const {
    for (int k = 0; k < draws; ++k) {
      const Dtype factor = scale * shares[k * labels + i];
      const int first = k * labels * classes + First(i);
      for (int c = 0; c < classes; ++c) {
        const int place = first + c * places;
        const Dtype target = c == static_cast<int>(label[i]);
        diff[place] = factor * (probabilities[place] - target);
      }
    }
  }
};

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_ALPHA_HPP_
