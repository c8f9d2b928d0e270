#ifndef CAFFE_UTIL_TRAINING_CHECKS_HPP_
#define CAFFE_UTIL_TRAINING_CHECKS_HPP_

// What a solver asks of its net: something to learn, and what was learned.

#include <cmath>
#include <vector>

#include "caffe/net.hpp"
#include "caffe/util/checks.hpp"

namespace caffe {

/// Refuses to train a net without a loss: its weights would stay as they are.
template <typename Dtype>
void CheckHasLoss(const Net<Dtype>& net) {
  for (Dtype weight : net.blob_loss_weights()) {
    if (weight != 0) return;
  }
  LOG(FATAL) << "net '" << net.name()
             << "' has no loss in the TRAIN phase, so there is nothing to "
                "train; it must have a loss layer, or a layer with a "
                "loss_weight other than 0";
}

/// Refuses weights that are NaN or infinite.
template <typename Dtype>
void CheckWeights(const Net<Dtype>& net) {
  for (int i = 0; i < net.layers().size(); ++i) {
    const auto& blobs = net.layers()[i]->blobs();
    for (int j = 0; j < blobs.size(); ++j) {
      CheckFinite(*blobs[j], net.layer_names()[i], j);
    }
  }
}

/// Refuses the end of a training whose weights or latest losses are NaN or
/// infinite.
template <typename Dtype>
void CheckTrained(const Net<Dtype>& net, int iteration,
                  const std::vector<Dtype>& losses) {
  CheckWeights(net);
  for (Dtype loss : losses) {
    CHECK(std::isfinite(loss))
        << "iteration " << iteration << ": the training ended with a loss of "
        << loss << ", but must be finite; did the training diverge?";
  }
}

}  // namespace caffe

#endif  // CAFFE_UTIL_TRAINING_CHECKS_HPP_
