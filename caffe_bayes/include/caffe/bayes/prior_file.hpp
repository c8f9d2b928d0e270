#ifndef CAFFE_BAYES_PRIOR_FILE_HPP_
#define CAFFE_BAYES_PRIOR_FILE_HPP_

#include <vector>

#include "caffe/blob.hpp"
#include "caffe/common.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {
namespace bayes {

/// The prior of each weight of a parameter blob.
template <typename Dtype>
struct OwnPriors {
  shared_ptr<Blob<Dtype> > means, stds;
};

/// The layer of the same name in the file that bayes_param.prior_from names.
LayerParameter ReadPriorLayer(const LayerParameter& layer);

/**
 * @brief The prior that bayes_param.prior_from of a layer names: what a layer
 *        of the same name has learned, one for each parameter blob.
 *
 * @param shapes those of the layer's weights and biases
 */
template <typename Dtype>
vector<OwnPriors<Dtype> > ReadPriors(const LayerParameter& layer,
                                     const vector<vector<int> >& shapes);

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_PRIOR_FILE_HPP_
