#ifndef CAFFE_UTIL_LAYER_NAMES_HPP_
#define CAFFE_UTIL_LAYER_NAMES_HPP_

#include <map>
#include <string>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/common.hpp"

namespace caffe {

/// Refuses two layers of one name in a net, if one of them has weights, which
/// are saved by that name, or draws, whose noise is named by it. Other layers
/// may share a name, as the losses of Caffe's autoencoder do.
/// @param trained whether the net is trained: stock weights are saved only then
template <typename Layers>
void CheckLayerNames(const std::vector<std::string>& names,
                     const Layers& layers, bool trained) {
  std::map<std::string, bool> needs_own;
  for (int i = 0; i < names.size(); ++i) {
    const bool needs = (trained && layers[i]->blobs().size() > 0) ||
                       dynamic_cast<bayes::Stochastic*>(layers[i].get());
    const auto found = needs_own.find(names[i]);
    LOG_IF(FATAL, found != needs_own.end() && (needs || found->second) &&
                      !names[i].empty())
        << "layer '" << names[i]
        << "': another layer of the same net has this name, but a layer with "
           "weights or draws must have its own";
    needs_own[names[i]] |= needs;
  }
}

}  // namespace caffe

#endif  // CAFFE_UTIL_LAYER_NAMES_HPP_
