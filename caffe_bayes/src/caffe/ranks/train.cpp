#include "caffe/ranks/train.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/util/hash.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {

namespace {

// A part of the gradients that is worth a message.
const size_t kPartBytes = 1 << 20;

// The first layer that uses a parameter: the last whose backward pass adds to
// its gradient.
template <typename Dtype>
int FirstLayer(const Net<Dtype>& net, const Blob<Dtype>& param) {
  for (int i = 0; i < net.layers().size(); ++i) {
    for (const auto& blob : net.layers()[i]->blobs()) {
      if (blob->diff() == param.diff()) return i;
    }
  }
  LOG(FATAL) << "a parameter of no layer";
  return 0;
}

// What the layers of a net keep, without the noise of the latest draw.
template <typename Dtype>
vector<Blob<Dtype>*> KeptBlobs(const Net<Dtype>& net) {
  vector<Blob<Dtype>*> kept;
  for (const auto& layer : net.layers()) {
    const auto* stochastic = dynamic_cast<bayes::Stochastic*>(layer.get());
    const int noise = stochastic ? stochastic->num_noise_blobs() : 0;
    for (int i = 0; i + noise < layer->blobs().size(); ++i) {
      kept.push_back(layer->blobs()[i].get());
    }
  }
  return kept;
}

// Whether all ranks give the same number.
bool IsSame(Ranks* ranks, int64_t number) {
  const int64_t smallest = ranks->Smallest(number);
  // ~ turns the order around, and cannot overflow.
  return smallest == ~ranks->Smallest(~number);
}

template <typename Dtype>
int64_t HashOfLearned(const Net<Dtype>& net) {
  Hash hash;
  for (int i = 0; i < net.learnable_params().size(); ++i) {
    if (net.params_lr()[i] == 0) continue;
    const Blob<Dtype>& blob = *net.learnable_params()[i];
    hash.Add(blob.cpu_data(), blob.count() * sizeof(Dtype));
  }
  return static_cast<int64_t>(hash.Value());
}

}  // namespace

template <typename Dtype>
GradientMean<Dtype>::GradientMean(Solver<Dtype>* solver, Ranks* ranks,
                                  size_t part_bytes)
    : ranks_(ranks), passes_(solver->param().iter_size()) {
  const Net<Dtype>& net = *solver->net();
  vector<Blob<Dtype>*> blobs;
  for (int i = 0; i < net.learnable_params().size(); ++i) {
    if (net.params_lr()[i] != 0) blobs.push_back(net.learnable_params()[i]);
  }
  vector<int> layers;
  for (const Blob<Dtype>* blob : blobs) {
    layers.push_back(FirstLayer(net, *blob));
  }
  vector<int> order(blobs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return layers[a] > layers[b]; });
  // The engine's loops like to start at a cache line.
  const size_t kAligned = 64 / sizeof(Dtype);
  size_t size = 0;
  vector<size_t> places;
  for (int i : order) {
    const size_t count =
        (blobs[i]->count() + kAligned - 1) / kAligned * kAligned;
    if (parts_.empty() || parts_.back().count * sizeof(Dtype) >= part_bytes) {
      parts_.push_back({size, 0, layers[i]});
    }
    parts_.back().count += count;
    parts_.back().layer = layers[i];
    places.push_back(size);
    size += count;
  }
  if (size == 0) return;
  buffer_.reset(new SyncedMemory(size * sizeof(Dtype)));
  Dtype* buffer = static_cast<Dtype*>(buffer_->mutable_cpu_data());
  for (int i = 0; i < order.size(); ++i) {
    blobs[order[i]]->diff()->set_cpu_data(buffer + places[i]);
  }
}

template <typename Dtype>
void GradientMean<Dtype>::on_start() {
  passes_done_ = started_ = 0;
}

template <typename Dtype>
void GradientMean<Dtype>::run(int layer) {
  if (passes_done_ == passes_ - 1) {
    Dtype* buffer =
        buffer_ ? static_cast<Dtype*>(buffer_->mutable_cpu_data()) : nullptr;
    for (; started_ < parts_.size() && parts_[started_].layer >= layer;
         ++started_) {
      const Part& part = parts_[started_];
      ranks_->StartSum(buffer + part.first, part.count);
    }
    ranks_->Progress();
  }
  if (layer == 0) ++passes_done_;
}

template <typename Dtype>
void GradientMean<Dtype>::on_gradients_ready() {
  CHECK_EQ(started_, parts_.size());
  ranks_->Wait();
  Dtype* buffer =
      buffer_ ? static_cast<Dtype*>(buffer_->mutable_cpu_data()) : nullptr;
  for (const Part& part : parts_) {
    caffe_scal(part.count, Dtype(1) / ranks_->count(), buffer + part.first);
  }
}

template <typename Dtype>
void TrainOnRanks(Solver<Dtype>* solver, Ranks* ranks) {
  if (ranks->EndSetUp(false) < ranks->count()) throw OtherRankFailed();
  CHECK(IsSame(ranks, solver->iter()))
      << "the ranks do not start from the same iteration; this one starts from "
      << solver->iter() << ". Do all hosts see the same snapshot?";
  for (Blob<Dtype>* blob : KeptBlobs(*solver->net())) {
    ranks->Broadcast(blob->mutable_cpu_data(), blob->count() * sizeof(Dtype));
  }
  GradientMean<Dtype> mean(solver, ranks, kPartBytes);
  solver->add_callback(&mean);
  solver->net()->add_after_backward(&mean);
  if (ranks->rank() == 0) {
    solver->Solve();
  } else {
    solver->Step(solver->param().max_iter() - solver->iter());
  }
  const bool is_same = IsSame(ranks, HashOfLearned(*solver->net()));
  LOG_IF(WARNING, !is_same && ranks->rank() == 0)
      << "The ranks end with different weights, of which those of rank 0 are "
         "saved. CPUs of different kinds round differently.";
}

#define INSTANTIATE(Dtype)            \
  template class GradientMean<Dtype>; \
  template void TrainOnRanks(Solver<Dtype>* solver, Ranks* ranks)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace caffe
