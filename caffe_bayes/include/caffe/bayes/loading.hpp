#ifndef CAFFE_BAYES_LOADING_HPP_
#define CAFFE_BAYES_LOADING_HPP_

#include <algorithm>

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

/// Whether blob `blob` of a layer is a delta.
template <typename Dtype>
bool IsDelta(const Layer<Dtype>& layer, int blob) {
  const Stochastic* stochastic = dynamic_cast<const Stochastic*>(&layer);
  const int means = stochastic ? stochastic->num_noise_blobs() : 0;
  return blob >= means && blob < 2 * means;
}

/// Copies the delta of a file. One number is that of all weights, however many
/// delta has in the net.
template <typename Dtype>
void CopyDelta(const Blob<Dtype>& source, const LayerParameter& layer,
               Blob<Dtype>* delta) {
  CHECK(source.count() == 1 || source.shape() == delta->shape())
      << "layer '" << layer.name() << "': bayes_param.posterior is "
      << BayesParameter::Posterior_Name(layer.bayes_param().posterior())
      << ", which makes delta a blob of shape " << delta->shape_string()
      << ", but the trained layer has one of shape " << source.shape_string()
      << "; set posterior as in its training";
  if (source.count() == 1) {
    std::fill_n(delta->mutable_cpu_data(), delta->count(),
                source.cpu_data()[0]);
  } else {
    delta->CopyFrom(source);
  }
}

/// The same, where the delta is blob `blob` of a layer of a net.
template <typename Dtype>
void LoadDelta(const Blob<Dtype>& source, Layer<Dtype>* layer, int blob) {
  CopyDelta(source, layer->layer_param(), layer->blobs()[blob].get());
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_LOADING_HPP_
