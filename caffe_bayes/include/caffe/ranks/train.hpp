#ifndef CAFFE_RANKS_TRAIN_HPP_
#define CAFFE_RANKS_TRAIN_HPP_

#include <cstddef>
#include <memory>
#include <vector>

#include "caffe/net.hpp"
#include "caffe/ranks/gpu_sums.hpp"
#include "caffe/ranks/ranks.hpp"
#include "caffe/solver.hpp"
#include "caffe/syncedmem.hpp"

namespace caffe {

/**
 * @brief Replaces the gradients of a solver by their means over all ranks.
 *
 * The gradients of all parameters that learn are in one buffer, of the CPU or
 * of the GPU, in the order in which the backward pass completes them. The pass
 * starts to sum a part of it as soon as the part is complete, so that most of
 * the sums are there when it ends.
 *
 * The gradient of KL is the same on each rank, and so is its mean: KL counts
 * once.
 */
template <typename Dtype>
class GradientMean : public Solver<Dtype>::Callback,
                     public Net<Dtype>::Callback {
 public:
  /// @param part_bytes what a part has at least: small layers are summed
  ///   together
  GradientMean(Solver<Dtype>* solver, Ranks* ranks, size_t part_bytes);

  /// How many sums an iteration starts.
  int num_parts() const { return parts_.size(); }

 protected:
  void on_start() override;
  /// After the backward pass of a layer.
  void run(int layer) override;
  void on_gradients_ready() override;

 private:
  struct Part {
    /// Where in the buffer it is.
    size_t first, count;
    /// The layer whose backward pass completes it.
    int layer;
  };

  /// The buffer, where the solver's gradients are; null without gradients.
  Dtype* Buffer();

  Ranks* const ranks_;
  /// Null on the CPU.
  std::unique_ptr<GpuSums> gpu_sums_;
  /// How many backward passes an iteration has.
  const int passes_;
  std::unique_ptr<SyncedMemory> buffer_;
  vector<Part> parts_;
  /// What this iteration has done: backward passes and started parts.
  int passes_done_ = 0;
  int started_ = 0;
};

/// Gives all ranks what the layers of rank 0 keep and do not learn, such as the
/// averages of BatchNorm.
template <typename Dtype>
void BroadcastStatistics(Net<Dtype>* net);

/// Trains on all ranks, with the weights of rank 0 to start from.
template <typename Dtype>
void TrainOnRanks(Solver<Dtype>* solver, Ranks* ranks);

}  // namespace caffe

#endif  // CAFFE_RANKS_TRAIN_HPP_
