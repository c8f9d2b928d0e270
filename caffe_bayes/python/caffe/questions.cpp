// What bayescaffe asks of Caffe before it trains a net or draws from it.

#include <boost/python.hpp>
#include <string>

#include "caffe/bayes/bayes_param.hpp"
#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/net.hpp"
#include "caffe/util/limits.hpp"
#include "caffe/util/upgrade_proto.hpp"

namespace bp = boost::python;

namespace caffe {

/// Net.mixing_layer: the first layer on the way to `output` that makes the
/// images of a batch depend on each other, None if there is none.
bp::object Net_MixingLayer(Net<float>* net, const std::string& output) {
  const std::string name = bayes::MonteCarlo<float>(net, output).MixingLayer();
  return name.empty() ? bp::object() : bp::object(name);
}

/// upgrade_net: a serialized NetParameter of any age in today's format.
bp::object UpgradeNet(const std::string& serialized) {
  NetParameter net;
  CHECK(net.ParseFromString(serialized)) << "not a NetParameter";
  CHECK(UpgradeNetAsNeeded("the net", &net)) << "cannot be upgraded";
  const std::string upgraded = net.SerializeAsString();
  return bp::object(bp::handle<>(
      PyBytes_FromStringAndSize(upgraded.data(), upgraded.size())));
}

template <typename Message>
void CheckMessageLimits(const std::string& serialized) {
  Message message;
  CHECK(message.ParseFromString(serialized))
      << "not a " << message.GetTypeName();
  CheckLimits(message);
}

/// check_net_limits, check_solver_limits: raise if a number of a serialized
/// NetParameter or SolverParameter is one that Caffe cannot work with.
void CheckNetLimits(const std::string& serialized) {
  CheckMessageLimits<NetParameter>(serialized);
}
void CheckSolverLimits(const std::string& serialized) {
  CheckMessageLimits<SolverParameter>(serialized);
}

/// default_kl_scale: what KL is multiplied by where kl_weight is not set, in a
/// net with so many Bayesian weights and training examples.
double DefaultKLScale(int64_t weights, int64_t examples) {
  CHECK_GT(weights, 0) << "the number of weights";
  CHECK_GE(examples, 0) << "the number of examples";
  return bayes::DefaultKLScale(weights, examples);
}

}  // namespace caffe
