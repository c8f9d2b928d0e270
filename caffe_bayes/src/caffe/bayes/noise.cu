#include "caffe/bayes/gpu.hpp"
#include "caffe/bayes/tiles.cuh"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {
namespace gpu {

namespace {

// A thread makes four words and writes them to each period.
__global__ void FillBitsKernel(NoiseKey key, uint64_t draw, uint64_t offset,
                               int period, int n, uint32_t* out) {
  // How many words of the first block come before the offset.
  const int before = offset % 4;
  const int blocks = (before + period - 1) / 4 + 1;
  for (int block = blockIdx.x * kThreads + threadIdx.x; block < blocks;
       block += gridDim.x * kThreads) {
    uint32_t words[4];
    BitBlock(key, draw, offset / 4 + block, words);
    for (int k = 0; k < 4; ++k) {
      const int first = 4 * block + k - before;
      if (first < 0 || first >= period) continue;
      for (int64_t i = first; i < n; i += period) out[i] = words[k];
    }
  }
}

}  // namespace

void FillBits(const NoiseKey& key, uint64_t draw, uint64_t offset, int period,
              int n, uint32_t* out) {
  if (n == 0) return;
  FillBitsKernel<<<Blocks(period), kThreads>>>(key, draw, offset, period, n,
                                               out);
  CUDA_POST_KERNEL_CHECK;
}

}  // namespace gpu
}  // namespace bayes
}  // namespace caffe
