#ifndef CAFFE_BAYES_LAYER_TRAIT_HPP_
#define CAFFE_BAYES_LAYER_TRAIT_HPP_

#include <limits>
#include <string>

#include "caffe/proto/caffe.pb.h"

namespace caffe {
namespace bayes {

/// The blobs of a Bayesian layer for each parameter blob of its stock layer:
/// m, delta and epsilon.
const int kBlobsPerParameter = 3;

/// The parameter blobs that a stock layer may have: weights, then biases.
const int kMostParameters = 2;

/// The first axis of a layer that treats all items alone.
const int kNoAxis = std::numeric_limits<int>::max();

/// The axis of a layer's weights that numbers its outputs, where each weight is
/// an output's only one, and where no axis does.
const int kEachWeight = std::numeric_limits<int>::max();
const int kNoOutputAxis = -1;

/// What the Bayesian layers and Monte Carlo inference must know of a type of
/// layer, and its class does not tell.
struct LayerTrait {
  /// The first axis of the bottom that the layer works along. The axes before
  /// it number items that do not depend on each other. May be negative, to
  /// count from the last axis.
  int (*first_axis)(const LayerParameter& param);
  /// Whether the layer is a stock layer with a Bayesian form.
  bool has_bayesian_form = false;
  /// Whether local reparametrisation is exact: no two outputs of an item use
  /// the same weight, and the layer computes variances of outputs if given
  /// squares of inputs and variances of weights.
  bool has_independent_outputs = false;
  /// The axis of the weights that numbers the layer's outputs: neurons, or
  /// filters. For layers with a posterior.
  int (*output_axis)(const LayerParameter& param) = nullptr;

  /// Whether the items of the first axis do not depend on each other, given the
  /// number of axes of the bottom.
  bool TreatsItemsAlone(const LayerParameter& param, int num_axes) const {
    const int axis = first_axis(param);
    return (axis < 0 ? axis + num_axes : axis) > 0;
  }
};

/// The trait of a type of layer, null where nothing is known of it.
const LayerTrait* FindTrait(const std::string& type);

/// The first axis of Scale and Bias. A number that is the same for the whole
/// bottom has none; a second bottom has the shape that it has, whatever
/// num_axes is.
template <typename Options>
int AxisUnlessScalar(const LayerParameter& param, const Options& options) {
  const bool scalar = options.num_axes() == 0 && param.bottom_size() < 2;
  return scalar ? kNoAxis : options.axis();
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_LAYER_TRAIT_HPP_
