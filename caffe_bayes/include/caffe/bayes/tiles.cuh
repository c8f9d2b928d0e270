#ifndef CAFFE_BAYES_TILES_CUH_
#define CAFFE_BAYES_TILES_CUH_

// How a kernel goes over n numbers. They are divided into tiles; a block of
// threads takes every gridDim.x-th tile, and each of its threads four numbers
// of it. Threads that are neighbours take numbers that are neighbours.

#include <algorithm>

#include "caffe/bayes/noise.hpp"

namespace caffe {
namespace bayes {
namespace gpu {

const int kThreads = 256;
const int kTile = 4 * kThreads;
// More tiles than this, and a block takes several. Enough for the largest
// devices; a fixed number, so that sums are the same on all of them.
const int kMostBlocks = 1024;

BAYES_HD int Tiles(int n) { return n > 0 ? (n - 1) / kTile + 1 : 0; }
/// How many blocks to launch; one does nothing where there are no numbers.
inline int Blocks(int n) {
  return std::min(std::max(Tiles(n), 1), kMostBlocks);
}

/// Calls function(tile) for each tile of this block.
template <typename Function>
__device__ void ForEachTile(int n, Function function) {
  for (int tile = blockIdx.x; tile < Tiles(n); tile += gridDim.x)
    function(tile);
}

/// Calls function(i, offset) for each number of this thread: its index, and
/// where it is in its tile.
template <typename Function>
__device__ void ForTile(int n, int tile, Function function) {
  const int first = tile * kTile;
  for (int k = 0; k < 4; ++k) {
    const int offset = k * kThreads + threadIdx.x;
    if (offset < n - first) function(first + offset, offset);
  }
}

/// The noise of the block's tile.
__device__ inline float* TileNoise() {
  __shared__ float noise[kTile];
  return noise;
}

/// Fills TileNoise, with the numbers from `offset` on for tile 0. Each thread
/// makes the four numbers of one Philox block.
__device__ inline void FillTile(const NoiseKey& key, uint64_t draw, int tile,
                                uint64_t offset = 0) {
  // All have read the tile before.
  __syncthreads();
  const uint64_t first = offset / 4 + static_cast<uint64_t>(tile) * kThreads;
  const int before = offset % 4;
  if (before == 0) {
    NormalBlock(key, draw, first + threadIdx.x, TileNoise() + 4 * threadIdx.x);
  } else {
    // The tile begins inside of a block, and ends inside of another.
    for (int block = threadIdx.x; block <= kThreads; block += kThreads) {
      float numbers[4];
      NormalBlock(key, draw, first + block, numbers);
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * block + k - before;
        if (at >= 0 && at < 4 * kThreads) TileNoise()[at] = numbers[k];
      }
    }
  }
  __syncthreads();
}

/// The sum of what the block's threads have.
__device__ inline double BlockSum(double mine) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = sums[0];
  // All have read it before it is written again.
  __syncthreads();
  return sum;
}

/// *sum = the sum of what the block's threads have.
__device__ inline void AddUp(double mine, double* sum) {
  const double total = BlockSum(mine);
  if (threadIdx.x == 0) *sum = total;
}

/// The sum of n numbers, by one block.
__device__ inline double SumOver(int n, const double* numbers) {
  double mine = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) mine += numbers[i];
  return BlockSum(mine);
}

}  // namespace gpu
}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_TILES_CUH_
