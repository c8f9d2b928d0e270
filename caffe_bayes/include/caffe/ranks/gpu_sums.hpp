#ifndef CAFFE_RANKS_GPU_SUMS_HPP_
#define CAFFE_RANKS_GPU_SUMS_HPP_

#include <memory>

#include "caffe/ranks/ranks.hpp"

namespace caffe {

/**
 * @brief Sums numbers of the ranks' GPUs by NCCL, while these compute.
 *
 * As with the sums of Ranks, all ranks must start the same sums, in the same
 * order.
 */
class GpuSums {
 public:
  /// Collective: rank 0 gives the others the id by which their GPUs meet.
  /// The current device is that of this rank.
  explicit GpuSums(Ranks* ranks);
  ~GpuSums();
  GpuSums(const GpuSums&) = delete;
  GpuSums& operator=(const GpuSums&) = delete;

  /// An error where this program cannot sum: it was built without NCCL.
  static void Require();

  /// Starts to replace numbers of the device, which were computed on the
  /// default stream, by their sums over all ranks.
  template <typename Dtype>
  void StartSum(Dtype* numbers, int n);
  /// Waits for all sums that were started.
  void Wait();

 private:
  // What NCCL and CUDA need. Builds without them have an empty one.
  struct Group;
  std::unique_ptr<Group> group_;
};

}  // namespace caffe

#endif  // CAFFE_RANKS_GPU_SUMS_HPP_
