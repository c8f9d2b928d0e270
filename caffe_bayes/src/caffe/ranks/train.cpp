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

template <typename Dtype>
vector<Blob<Dtype>*> LearnedBlobs(const Net<Dtype>& net) {
  vector<Blob<Dtype>*> learned;
  for (int i = 0; i < net.learnable_params().size(); ++i) {
    if (net.params_lr()[i] != 0) learned.push_back(net.learnable_params()[i]);
  }
  return learned;
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

template <typename Dtype>
void Broadcast(Ranks* ranks, Blob<Dtype>* blob) {
  ranks->Broadcast(blob->mutable_cpu_data(), blob->count() * sizeof(Dtype));
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
  for (const Blob<Dtype>* blob : LearnedBlobs(net)) {
    hash.Add(blob->cpu_data(), blob->count() * sizeof(Dtype));
  }
  return static_cast<int64_t>(hash.Value());
}

}  // namespace

template <typename Dtype>
GradientMean<Dtype>::GradientMean(Solver<Dtype>* solver, Ranks* ranks,
                                  size_t part_bytes)
    : ranks_(ranks), passes_(solver->param().iter_size()) {
  if (Caffe::mode() == Caffe::GPU) gpu_sums_.reset(new GpuSums(ranks));
  const Net<Dtype>& net = *solver->net();
  const vector<Blob<Dtype>*> blobs = LearnedBlobs(net);
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
  Dtype* buffer = Buffer();
  for (int i = 0; i < order.size(); ++i) {
    SyncedMemory* diff = blobs[order[i]]->diff().get();
    if (gpu_sums_) {
      diff->set_gpu_data(buffer + places[i]);
    } else {
      diff->set_cpu_data(buffer + places[i]);
    }
  }
}

template <typename Dtype>
Dtype* GradientMean<Dtype>::Buffer() {
  if (!buffer_) return nullptr;
  return static_cast<Dtype*>(gpu_sums_ ? buffer_->mutable_gpu_data()
                                       : buffer_->mutable_cpu_data());
}

template <typename Dtype>
void GradientMean<Dtype>::on_start() {
  passes_done_ = started_ = 0;
}

template <typename Dtype>
void GradientMean<Dtype>::run(int layer) {
  if (passes_done_ == passes_ - 1) {
    Dtype* buffer = Buffer();
    for (; started_ < parts_.size() && parts_[started_].layer >= layer;
         ++started_) {
      const Part& part = parts_[started_];
      if (gpu_sums_) {
        gpu_sums_->StartSum(buffer + part.first, part.count);
      } else {
        ranks_->StartSum(buffer + part.first, part.count);
      }
    }
    ranks_->Progress();
  }
  if (layer == 0) ++passes_done_;
}

template <typename Dtype>
void GradientMean<Dtype>::on_gradients_ready() {
  CHECK_EQ(started_, parts_.size());
  ranks_->Wait();
  if (gpu_sums_) gpu_sums_->Wait();
  const Dtype share = Dtype(1) / ranks_->count();
  Dtype* buffer = Buffer();
  for (const Part& part : parts_) {
    if (!gpu_sums_) {
      caffe_scal(part.count, share, buffer + part.first);
    } else {
#ifndef CPU_ONLY
      caffe_gpu_scal(part.count, share, buffer + part.first);
#endif
    }
  }
}

template <typename Dtype>
void BroadcastStatistics(Net<Dtype>* net) {
  vector<SyncedMemory*> learned;
  for (const Blob<Dtype>* blob : LearnedBlobs(*net)) {
    learned.push_back(blob->data().get());
  }
  for (Blob<Dtype>* blob : KeptBlobs(*net)) {
    if (std::count(learned.begin(), learned.end(), blob->data().get()))
      continue;
    Broadcast(Ranks::Get(), blob);
  }
}

template <typename Dtype>
void TrainOnRanks(Solver<Dtype>* solver, Ranks* ranks) {
  if (ranks->EndSetUp(false) < ranks->count()) throw OtherRankFailed();
  CHECK(IsSame(ranks, solver->iter()))
      << "the ranks do not start from the same iteration; this one starts from "
      << solver->iter() << ". Do all hosts see the same snapshot?";
  for (Blob<Dtype>* blob : KeptBlobs(*solver->net())) Broadcast(ranks, blob);
  GradientMean<Dtype> mean(solver, ranks, kPartBytes);
  solver->add_callback(&mean);
  solver->net()->add_after_backward(&mean);
  solver->Solve();
  const bool is_same = IsSame(ranks, HashOfLearned(*solver->net()));
  LOG_IF(WARNING, !is_same && ranks->rank() == 0)
      << "The ranks end with different weights, of which those of rank 0 are "
         "saved. CPUs of different kinds round differently.";
}

#define INSTANTIATE(Dtype)                            \
  template class GradientMean<Dtype>;                 \
  template void BroadcastStatistics(Net<Dtype>* net); \
  template void TrainOnRanks(Solver<Dtype>* solver, Ranks* ranks)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace caffe
