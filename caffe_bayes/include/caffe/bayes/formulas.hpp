#ifndef CAFFE_BAYES_FORMULAS_HPP_
#define CAFFE_BAYES_FORMULAS_HPP_

// The mathematics of one weight, each formula once, with the paper's names:
//
//   q(w) = N(m, (tau m)^2)     the posterior, w = m (1 + tau epsilon)
//   tau  = ln(1 + exp(delta))  one delta for a group of weights: for all of a
//                              layer, for those of one output, or for each
//   p(w) = N(mu, zeta^2)       the prior
//
//   KL(q || p) = sum over weights of
//       ln zeta - ln tau - ln|m| - 1/2 + (tau^2 m^2 + (m - mu)^2) / (2 zeta^2)

#include "caffe/bayes/host_device.hpp"

namespace caffe {
namespace bayes {

// Where |m| is smaller than this, -ln|m| is continued by a parabola, see
// LogAbs. It bounds the push of KL on a weight to 1 / kSmallMean.
const double kSmallMean = 1e-3;

/// tau = ln(1 + exp(delta)), without overflow on either side.
template <typename Dtype>
BAYES_HD Dtype Softplus(Dtype delta) {
  return (delta > 0 ? delta : Dtype(0)) + log1p(exp(-fabs(delta)));
}

/// delta, or its floor where it is below that. What is NaN stays NaN.
template <typename Dtype>
BAYES_HD Dtype RaisedDelta(Dtype delta, Dtype floor) {
  return delta < floor ? floor : delta;
}

/// The delta whose softplus is tau > 0.
template <typename Dtype>
BAYES_HD Dtype SoftplusInverse(Dtype tau) {
  return tau + log(-expm1(-tau));
}

/// d tau / d delta = 1 / (1 + exp(-delta)).
template <typename Dtype>
BAYES_HD Dtype SoftplusSlope(Dtype delta) {
  return 1 / (1 + exp(-delta));
}

/// d ln tau / d delta = SoftplusSlope / Softplus. Both vanish as delta falls,
/// and would end as 0 / 0; their ratio is 1 - exp(delta) / 2 + ... and tends to
/// 1.
template <typename Dtype>
BAYES_HD Dtype LogSoftplusSlope(Dtype delta) {
  if (delta < -20) return 1 - exp(delta) / 2;
  return SoftplusSlope(delta) / Softplus(delta);
}

/// ln|m|, but below kSmallMean = c the parabola ln c + (m^2/c^2 - 1) / 2, which
/// meets it with the same value and slope. The true KL is infinite at m = 0,
/// where q is a point: a bias that starts at 0 would be NaN, and a weight that
/// comes near 0 would be thrown out again by a step of any size.
template <typename Dtype>
BAYES_HD Dtype LogAbs(Dtype m) {
  const Dtype c = static_cast<Dtype>(kSmallMean);
  if (fabs(m) >= c) return log(fabs(m));
  const Dtype ratio = m / c;
  return log(c) + (ratio * ratio - 1) / 2;
}

/// d LogAbs / d m: 1/m, or m/c^2 near zero; odd, continuous, at most 1/c.
template <typename Dtype>
BAYES_HD Dtype LogAbsSlope(Dtype m) {
  const Dtype c = static_cast<Dtype>(kSmallMean);
  return fabs(m) >= c ? 1 / m : m * (1 / (c * c));
}

/// The weight w that the noise epsilon stands for.
template <typename Dtype>
BAYES_HD Dtype SampledWeight(Dtype m, Dtype tau, Dtype epsilon) {
  return m * (1 + tau * epsilon);
}

/// d loss / d m, given d loss / d w.
template <typename Dtype>
BAYES_HD Dtype MeanGradient(Dtype w_gradient, Dtype tau, Dtype epsilon) {
  return w_gradient * (1 + tau * epsilon);
}

/// d loss / d tau of one weight, given d loss / d w.
template <typename Dtype>
BAYES_HD Dtype TauGradient(Dtype w_gradient, Dtype m, Dtype epsilon) {
  return w_gradient * m * epsilon;
}

/// The variance of a weight.
template <typename Dtype>
BAYES_HD Dtype WeightVariance(Dtype m, Dtype tau) {
  const Dtype std = tau * m;
  return std * std;
}

/// d loss / d m by way of the weight's variance, given d loss / d variance.
template <typename Dtype>
BAYES_HD Dtype VarianceMeanGradient(Dtype gradient, Dtype m, Dtype tau) {
  return gradient * 2 * tau * tau * m;
}

/// d loss / d tau of one weight, given d loss / d variance.
template <typename Dtype>
BAYES_HD Dtype VarianceTauGradient(Dtype gradient, Dtype m, Dtype tau) {
  return gradient * 2 * tau * m * m;
}

/// An output that is drawn itself: the sum of normal weights times their inputs
/// has this mean and this variance.
template <typename Dtype>
BAYES_HD Dtype SampledOutput(Dtype mean, Dtype variance, Dtype epsilon) {
  return mean + sqrt(variance) * epsilon;
}

/// d loss / d variance of an output that was drawn, given d loss / d output.
/// Where the variance is 0, so are all the products that this is a factor of.
template <typename Dtype>
BAYES_HD Dtype OutputVarianceGradient(Dtype gradient, Dtype variance,
                                      Dtype epsilon) {
  return variance > 0 ? gradient * epsilon / (2 * sqrt(variance)) : Dtype(0);
}

/// d loss / d x of an input, given d loss / d x^2.
template <typename Dtype>
BAYES_HD Dtype SquareGradient(Dtype gradient, Dtype x) {
  return gradient * 2 * x;
}

/// 1 / zeta^2. Products with it are cheaper than quotients, as most priors have
/// one zeta for all weights.
template <typename Dtype>
BAYES_HD Dtype Precision(Dtype zeta) {
  return 1 / (zeta * zeta);
}

/// KL of one weight.
template <typename Dtype>
BAYES_HD Dtype WeightKL(Dtype m, Dtype tau, Dtype mu, Dtype zeta) {
  const Dtype spread = tau * m / zeta;
  const Dtype shift = (m - mu) / zeta;
  return log(zeta) - log(tau) - LogAbs(m) +
         (spread * spread + shift * shift - 1) / 2;
}

/// d KL / d m of one weight.
template <typename Dtype>
BAYES_HD Dtype MeanKLGradient(Dtype m, Dtype tau, Dtype mu, Dtype zeta) {
  return -LogAbsSlope(m) + (tau * tau * m + m - mu) * Precision(zeta);
}

/// d KL / d delta of a group of `count` weights, given the sum of
/// (m / zeta)^2.
template <typename Dtype>
BAYES_HD Dtype DeltaKLGradient(Dtype delta, Dtype tau, Dtype sum_sq,
                               int count) {
  return SoftplusSlope(delta) * tau * sum_sq - count * LogSoftplusSlope(delta);
}

/// d loss / d delta of a group, kl_scale times KL included, given the sum of
/// TauGradient.
template <typename Dtype>
BAYES_HD Dtype DeltaGradient(Dtype delta, Dtype tau, Dtype kl_scale,
                             Dtype by_tau, Dtype sum_sq, int count) {
  const Dtype of_loss = SoftplusSlope(delta) * by_tau;
  if (kl_scale == 0) return of_loss;
  return of_loss + kl_scale * DeltaKLGradient(delta, tau, sum_sq, count);
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_FORMULAS_HPP_
