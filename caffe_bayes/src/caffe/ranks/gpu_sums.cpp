#include "caffe/ranks/gpu_sums.hpp"

#include "caffe/common.hpp"
#include "caffe/error.hpp"
#ifdef USE_NCCL
#include "caffe/util/nccl.hpp"
#endif

namespace caffe {

#ifdef USE_NCCL

struct GpuSums::Group {
  ncclComm_t ranks;
  cudaStream_t stream;
};

void GpuSums::Require() {}

GpuSums::GpuSums(Ranks* ranks) {
  ncclUniqueId id;
  if (ranks->rank() == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  ranks->Broadcast(&id, sizeof(id));
  group_.reset(new Group());
  NCCL_CHECK(
      ncclCommInitRank(&group_->ranks, ranks->count(), id, ranks->rank()));
  CUDA_CHECK(cudaStreamCreateWithFlags(&group_->stream, cudaStreamNonBlocking));
}

GpuSums::~GpuSums() {
  // An error may be on its way.
  cudaStreamDestroy(group_->stream);
  ncclCommDestroy(group_->ranks);
}

template <typename Dtype>
void GpuSums::StartSum(Dtype* numbers, int n) {
  CUDA_CHECK(cudaStreamSynchronize(cudaStreamDefault));
  NCCL_CHECK(ncclAllReduce(numbers, numbers, n, nccl::dataType<Dtype>::type,
                           ncclSum, group_->ranks, group_->stream));
}

void GpuSums::Wait() { CUDA_CHECK(cudaStreamSynchronize(group_->stream)); }

#else

struct GpuSums::Group {};

void GpuSums::Require() {
  throw Error(
      "", 0,
      "this caffe was built without NCCL, so several ranks cannot train "
      "on GPUs; build it with USE_NCCL=ON, or pass -cpu (docs/mpi.md)");
}

GpuSums::GpuSums(Ranks*) { Require(); }
GpuSums::~GpuSums() {}
template <typename Dtype>
void GpuSums::StartSum(Dtype*, int) {}
void GpuSums::Wait() {}

#endif  // USE_NCCL

template void GpuSums::StartSum(float* numbers, int n);
template void GpuSums::StartSum(double* numbers, int n);

}  // namespace caffe
