#ifndef CAFFE_BAYES_LOADING_HPP_
#define CAFFE_BAYES_LOADING_HPP_

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/layer.hpp"

namespace caffe {
namespace bayes {

/**
 * @brief How many leading blobs of a saved layer go into a layer of a net.
 *
 * All, where both have the same number. The first blobs of a Bayesian layer are
 * means, one for each parameter blob of its stock layer, so they can be copied
 * either way; the rest of a Bayesian layer then keeps its initial value.
 *
 * @return the number, or -1 where the two do not fit.
 */
template <typename Dtype>
int BlobsToCopy(Layer<Dtype>* target, int source_blobs) {
  const int blobs = target->blobs().size();
  if (source_blobs == blobs) return blobs;
  const Stochastic* stochastic = dynamic_cast<const Stochastic*>(target);
  if (stochastic && stochastic->num_noise_blobs() == source_blobs) {
    return source_blobs;
  }
  const LayerTrait* trait = FindTrait(target->type());
  const bool from_bayesian_form = trait && trait->has_bayesian_form &&
                                  source_blobs == kBlobsPerParameter * blobs;
  return from_bayesian_form ? blobs : -1;
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_LOADING_HPP_
