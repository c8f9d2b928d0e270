#ifndef CAFFE_BAYES_LOADING_HPP_
#define CAFFE_BAYES_LOADING_HPP_

#include <string>

#include "caffe/layer_factory.hpp"

namespace caffe {
namespace bayes {

/**
 * @brief How many leading blobs of a saved layer go into a layer of a net.
 *
 * All, where both have the same number. A Bayesian layer has three times the
 * blobs of its stock layer, the means first, so the means can be copied either
 * way; the rest of a Bayesian layer then keeps its initial value.
 *
 * @return the number, or -1 where the two do not fit.
 */
template <typename Dtype>
int BlobsToCopy(const std::string& target_type, int target_blobs,
                int source_blobs) {
  if (source_blobs == target_blobs) return target_blobs;
  const auto& registry = LayerRegistry<Dtype>::Registry();
  const bool target_is_bayes = target_type.compare(0, 5, "Bayes") == 0 &&
                               registry.count(target_type.substr(5));
  if (target_is_bayes && target_blobs == 3 * source_blobs) return source_blobs;
  const bool target_is_stock = registry.count("Bayes" + target_type);
  if (target_is_stock && source_blobs == 3 * target_blobs) return target_blobs;
  return -1;
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_LOADING_HPP_
