// Net.posteriors of pycaffe, as far as it is C++: posteriors.py is the rest.

#include <boost/python.hpp>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/net.hpp"

namespace bp = boost::python;

namespace caffe {

/// A list of (layer name, [tau, tau_b], KL, its factor).
bp::list Net_Posteriors(const Net<float>& net) {
  bp::list result;
  for (const bayes::LayerUncertainty& layer : bayes::Uncertainties(net)) {
    bp::list taus;
    for (double tau : layer.uncertainty.taus) taus.append(tau);
    result.append(bp::make_tuple(layer.name, taus, layer.uncertainty.kl,
                                 layer.uncertainty.kl_scale));
  }
  return result;
}

}  // namespace caffe
