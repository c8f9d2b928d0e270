// The member of Caffe's solvers that updates the weights in one pass.

#include <cmath>
#include <string>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/sgd_solvers.hpp"

namespace caffe {

namespace {

// What a type of solver does, or null if the engine does not have it, and the
// numbers of its step but those that differ from blob to blob.
template <typename T>
engine::SolverUpdate<T> FindUpdate(const string& type,
                                   const SolverParameter& param, int iteration,
                                   engine::SolverStep<T>* step) {
  const engine::Kernels<T>& kernels = engine::BestKernels<T>();
  step->delta = param.delta();
  step->keep_h = param.momentum();
  if (type == "SGD") return kernels.momentum_update;
  if (type == "Nesterov") return kernels.nesterov_update;
  if (type == "AdaGrad" || type == "RMSProp") {
    const bool sums = type == "AdaGrad";
    step->keep_h = sums ? 1 : param.rms_decay();
    step->add_h = sums ? 1 : 1 - T(param.rms_decay());
    return kernels.root_mean_square_update;
  }
  if (type == "Adam") {
    step->add_h = 1 - step->keep_h;
    step->keep_v = param.momentum2();
    step->add_v = 1 - step->keep_v;
    // Both means start at 0, and are too small at first.
    const double mean = 1 - std::pow<double>(step->keep_h, iteration + 1);
    const double square = 1 - std::pow<double>(step->keep_v, iteration + 1);
    step->rate *= std::sqrt(square) / mean;
    return kernels.adam_update;
  }
  return nullptr;
}

}  // namespace

template <typename Dtype>
bool SGDSolver<Dtype>::UpdateByEngine(Dtype rate) {
  const SolverParameter& param = this->param_;
  if (Caffe::mode() != Caffe::CPU || param.regularization_type() != "L2" ||
      !engine::IsChosen(0)) {
    return false;
  }
  engine::SolverStep<Dtype> step;
  step.rate = rate;
  const engine::SolverUpdate<Dtype> update =
      FindUpdate(this->type(), param, this->iter_, &step);
  if (!update) return false;
  const vector<Blob<Dtype>*>& blobs = this->net_->learnable_params();
  for (int i = 0; i < blobs.size(); ++i) {
    if (this->net_->params_lr()[i] == 0) continue;
    engine::SolverStep<Dtype> own = step;
    own.scale = Dtype(1) / param.iter_size();
    own.rate *= this->net_->params_lr()[i];
    own.decay = param.weight_decay() * this->net_->params_weight_decay()[i];
    Dtype* w = blobs[i]->mutable_cpu_data();
    Dtype* dw = blobs[i]->mutable_cpu_diff();
    Dtype* h = history_[i]->mutable_cpu_data();
    const int second = blobs.size() + i;
    Dtype* v =
        second < history_.size() ? history_[second]->mutable_cpu_data() : h;
    engine::ParallelPortions(blobs[i]->count(), [&](int, int first, int count) {
      update(count, own, w + first, dw + first, h + first, v + first);
    });
  }
  return true;
}

template bool SGDSolver<float>::UpdateByEngine(float rate);
template bool SGDSolver<double>::UpdateByEngine(double rate);

}  // namespace caffe
