#ifndef CAFFE_BAYES_BAYES_PARAM_HPP_
#define CAFFE_BAYES_BAYES_PARAM_HPP_

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {
namespace bayes {

/// Stops with the layer, the field, its value and what is allowed, unless a
/// layer's bayes_param makes sense.
/// @param bottom_axes the number of axes of the layer's bottom
void CheckBayesParam(const LayerParameter& layer, const LayerTrait& trait,
                     int bottom_axes);

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_BAYES_PARAM_HPP_
