// Net.posteriors and Net.taus of pycaffe, as far as they are C++: posteriors.py
// is the rest.

#include <boost/python.hpp>
#include <string>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/net.hpp"

namespace bp = boost::python;

namespace caffe {

/// A list of (layer name, [(tau, lowest, highest) of weights and biases], KL,
/// its factor).
bp::list Net_Posteriors(const Net<float>& net) {
  bp::list result;
  for (const bayes::LayerUncertainty& layer : bayes::Uncertainties(net)) {
    bp::list taus;
    for (const bayes::TauSummary& tau : layer.uncertainty.taus) {
      taus.append(bp::make_tuple(tau.median, tau.lowest, tau.highest));
    }
    result.append(bp::make_tuple(layer.name, taus, layer.uncertainty.kl,
                                 layer.uncertainty.kl_scale));
  }
  return result;
}

/// The taus of parameter `param` of a layer with a posterior, as the bytes of
/// doubles.
bp::object Net_Taus(const Net<float>& net, const std::string& layer,
                    int param) {
  bayes::Stochastic* stochastic =
      dynamic_cast<bayes::Stochastic*>(net.layer_by_name(layer).get());
  CHECK(stochastic) << "layer '" << layer << "' has no posterior";
  const std::vector<double> taus = stochastic->GetTaus(param);
  return bp::object(bp::handle<>(
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(taus.data()),
                                taus.size() * sizeof(double))));
}

}  // namespace caffe
