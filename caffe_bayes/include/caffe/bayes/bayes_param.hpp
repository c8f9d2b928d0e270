#ifndef CAFFE_BAYES_BAYES_PARAM_HPP_
#define CAFFE_BAYES_BAYES_PARAM_HPP_

#include <cstdint>

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {
namespace bayes {

/// What KL is multiplied by where kl_weight is not set: docs/kl.md tells why.
/// Nets with fewer weights than were measured get the highest value that was.
/// @param weights how many weights of the net have a posterior
/// @param examples how many it is trained on; 0 if that is not known
double DefaultKLScale(int64_t weights, int64_t examples);

/// Stops with the layer, the field, its value and what is allowed, unless a
/// layer's bayes_param makes sense.
/// @param bottom_axes the number of axes of the layer's bottom
void CheckBayesParam(const LayerParameter& layer, const LayerTrait& trait,
                     int bottom_axes);

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_BAYES_PARAM_HPP_
