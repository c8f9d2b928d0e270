#ifndef CAFFE_BAYES_LOADING_HPP_
#define CAFFE_BAYES_LOADING_HPP_

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/layer.hpp"

namespace caffe {
namespace bayes {

/// How many leading blobs of a layer are parameters. The rest is noise.
template <typename Dtype>
int NumParameters(Layer<Dtype>* layer) {
  const Stochastic* stochastic = dynamic_cast<const Stochastic*>(layer);
  return layer->blobs().size() -
         (stochastic ? stochastic->num_noise_blobs() : 0);
}

/// How many leading blobs of a layer are saved with their numbers.
template <typename Dtype>
int NumSavedBlobs(Layer<Dtype>* layer) {
  const bool saves_noise = layer->layer_param().bayes_param().save_noise();
  return saves_noise ? layer->blobs().size() : NumParameters(layer);
}

/// A saved layer without blobs that have no numbers.
inline LayerParameter WithoutUnsavedNoise(LayerParameter param) {
  while (param.blobs_size() > 0) {
    const BlobProto& last = param.blobs(param.blobs_size() - 1);
    if (last.data_size() + last.double_data_size() > 0) break;
    param.mutable_blobs()->RemoveLast();
  }
  return param;
}

/**
 * @brief How many leading blobs of a saved layer go into a layer of a net.
 *
 * All, where both have the same number, except for the noise: a draw has a
 * name, and its noise need not be loaded. The first blobs of a Bayesian layer
 * are means, one for each parameter blob of its stock layer, so they can be
 * copied either way; the rest of a Bayesian layer then keeps its initial value.
 *
 * @return the number, or -1 where the two do not fit.
 */
template <typename Dtype>
int BlobsToCopy(Layer<Dtype>* target, int source_blobs) {
  const int blobs = target->blobs().size();
  const int parameters = NumParameters(target);
  if (source_blobs == blobs) return parameters;
  // A Bayesian layer has as many means as blobs of noise.
  const int means = blobs - parameters;
  if (means > 0 && source_blobs == means) return means;
  const LayerTrait* trait = FindTrait(target->type());
  const bool from_bayesian_form = trait && trait->has_bayesian_form &&
                                  source_blobs == kBlobsPerParameter * blobs;
  return from_bayesian_form ? blobs : -1;
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_LOADING_HPP_
