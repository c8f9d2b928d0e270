#ifndef CAFFE_BAYES_POSTERIOR_LOG_HPP_
#define CAFFE_BAYES_POSTERIOR_LOG_HPP_

#include <sstream>
#include <string>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

/// A tau, or the median of several and their range.
inline std::string TauText(const TauSummary& tau) {
  std::ostringstream text;
  text << tau.median;
  if (tau.lowest < tau.highest) {
    text << " (" << tau.lowest << " to " << tau.highest << ")";
  }
  return text.str();
}

/// Logs how uncertain a net's Bayesian layers are of their parameters: the KL
/// of all of them, then the tau of each. Programs read these lines.
template <typename Net>
void LogPosteriors(const Net& net) {
  if (FLAGS_minloglevel > google::GLOG_INFO) return;
  const std::vector<LayerUncertainty> layers = Uncertainties(net);
  if (layers.empty()) return;
  double kl = 0, kl_term = 0;
  for (const LayerUncertainty& layer : layers) {
    kl += layer.uncertainty.kl;
    kl_term += layer.uncertainty.kl_term();
  }
  LOG(INFO) << "    KL = " << kl << ", which adds " << kl_term
            << " to the objective";
  for (const LayerUncertainty& layer : layers) {
    const std::vector<TauSummary>& taus = layer.uncertainty.taus;
    std::ostringstream line;
    line << "    " << layer.name << ": tau = " << TauText(taus[0]);
    if (taus.size() > 1) line << ", tau_b = " << TauText(taus[1]);
    LOG(INFO) << line.str();
  }
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_POSTERIOR_LOG_HPP_
