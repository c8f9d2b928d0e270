#ifndef CAFFE_BAYES_POSTERIOR_LOG_HPP_
#define CAFFE_BAYES_POSTERIOR_LOG_HPP_

#include <sstream>
#include <string>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

/// Logs how sure a net's Bayesian layers are of their parameters: KL of them
/// all, then tau of each. Programs read these lines.
template <typename Net>
void LogPosteriors(const Net& net) {
  if (FLAGS_minloglevel > google::GLOG_INFO) return;
  std::vector<std::string> lines;
  double kl = 0, kl_term = 0;
  for (const auto& layer : net.layers()) {
    Stochastic* stochastic = dynamic_cast<Stochastic*>(layer.get());
    if (!stochastic) continue;
    const Uncertainty uncertainty = stochastic->GetUncertainty();
    if (uncertainty.taus.empty()) continue;
    kl += uncertainty.kl;
    kl_term += uncertainty.kl_term;
    std::ostringstream line;
    line << "    " << layer->layer_param().name()
         << ": tau = " << uncertainty.taus[0];
    if (uncertainty.taus.size() > 1) {
      line << ", tau_b = " << uncertainty.taus[1];
    }
    lines.push_back(line.str());
  }
  if (lines.empty()) return;
  LOG(INFO) << "    KL = " << kl << ", which adds " << kl_term
            << " to the objective";
  for (const std::string& line : lines) LOG(INFO) << line;
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_POSTERIOR_LOG_HPP_
