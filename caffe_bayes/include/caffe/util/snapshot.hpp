#ifndef CAFFE_UTIL_SNAPSHOT_HPP_
#define CAFFE_UTIL_SNAPSHOT_HPP_

// What a snapshot tells of itself, so that one that is cut off, damaged or put
// together from two is noticed: caffe.proto has the fields.

#include <algorithm>
#include <string>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {

/// A hash of what determines the result of a training: the train net without
/// the places of its data, and the solver without `MayDiffer`.
uint64_t TrainingHash(const SolverParameter& solver);

/// The fields of a solver that may differ when a training resumes.
std::vector<std::string> MayDiffer();

/// Adds the hash of the state and of the weights in its `learned_net`.
void AddHash(SolverState* state);

inline void SetNumbers(const float* numbers, int count, BlobProto* proto) {
  proto->mutable_data()->Resize(count, 0);
  std::copy(numbers, numbers + count, proto->mutable_data()->mutable_data());
}

inline void SetNumbers(const double* numbers, int count, BlobProto* proto) {
  proto->mutable_double_data()->Resize(count, 0);
  std::copy(numbers, numbers + count,
            proto->mutable_double_data()->mutable_data());
}

/// Does what Blob::ToProto does, which adds the numbers one by one.
template <typename Dtype>
void FillProto(const Blob<Dtype>& blob, BlobProto* proto) {
  for (const int size : blob.shape()) proto->mutable_shape()->add_dim(size);
  SetNumbers(blob.cpu_data(), blob.count(), proto);
}

/// The state of a solver that does not keep more than blobs of history.
template <typename Dtype>
SolverState MakeState(int iter, int current_step, const std::string& model,
                      uint64_t training,
                      const std::vector<shared_ptr<Blob<Dtype>>>& history) {
  SolverState state;
  state.set_iter(iter);
  state.set_learned_net(model);
  state.set_current_step(current_step);
  for (const shared_ptr<Blob<Dtype>>& blob : history) {
    FillProto(*blob, state.add_history());
  }
  state.set_training(training);
  AddHash(&state);
  return state;
}

/// Throws unless a solver state, of any format, and its weights are complete,
/// finite and belong together.
/// @return the state
SolverState CheckSnapshot(const std::string& state_file);

}  // namespace caffe

#endif  // CAFFE_UTIL_SNAPSHOT_HPP_
