#include "caffe/bayes/gpu.hpp"
#include "caffe/bayes/tiles.cuh"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {
namespace gpu {

namespace {

template <typename Dtype>
__device__ Dtype Raised(const Delta<Dtype>& delta) {
  return RaisedDelta(*delta.value, delta.floor);
}

// How a kernel writes weight i, whose noise is at `offset` within its tile.

template <typename Dtype>
__device__ void Prepare(const WriteSample<Dtype>& write, int tile) {
  FillTile(write.key, write.draw, tile);
}
template <typename Write>
__device__ void Prepare(const Write&, int) {}

template <typename Dtype>
__device__ void WriteWeight(const WriteSample<Dtype>& write, int i, int offset,
                            Dtype m, Dtype tau) {
  const Dtype epsilon = TileNoise()[offset];
  write.epsilon[i] = epsilon;
  write.w[i] = SampledWeight(m, tau, epsilon);
}
template <typename Dtype>
__device__ void WriteWeight(const WriteMean<Dtype>& write, int i, int, Dtype m,
                            Dtype) {
  write.epsilon[i] = 0;
  write.w[i] = m;
}
template <typename Dtype>
__device__ void WriteWeight(const WriteVariance<Dtype>& write, int i, int,
                            Dtype m, Dtype tau) {
  write.variance[i] = WeightVariance(m, tau);
}
template <typename Dtype>
__device__ void WriteWeight(const WriteNothing&, int, int, Dtype, Dtype) {}

template <typename Dtype, typename Prior>
__device__ Dtype Term(const SumKL<Prior>& sum, int i, Dtype m, Dtype tau) {
  return WeightKL(m, tau, sum.prior.mean(i), sum.prior.std(i));
}
template <typename Prior>
__device__ void StoreSum(const SumKL<Prior>&, double mine, double* sums) {
  AddUp(mine, &sums[blockIdx.x]);
}
template <typename Dtype>
__device__ Dtype Term(const SumNothing&, int, Dtype, Dtype) {
  return 0;
}
__device__ void StoreSum(const SumNothing&, double, double*) {}

template <typename Dtype, typename Write, typename Sum>
__global__ void ForwardKernel(int n, Delta<Dtype> delta, const Dtype* m,
                              Write write, Sum sum, double* sums) {
  const Dtype raised = Raised(delta);
  const Dtype tau = Softplus(raised);
  double mine = 0;
  ForEachTile(n, [&](int tile) {
    Prepare(write, tile);
    Dtype of_tile = 0;
    ForTile(n, tile, [&](int i, int offset) {
      WriteWeight(write, i, offset, m[i], tau);
      of_tile += Term(sum, i, m[i], tau);
    });
    mine += of_tile;
  });
  StoreSum(sum, mine, sums);
  // Threads that read it later raise it to the same.
  if (blockIdx.x == 0 && threadIdx.x == 0) *delta.value = raised;
}

template <typename Dtype>
__global__ void AddKLKernel(int blocks, const double* sums, Dtype scale,
                            Dtype* total) {
  const double kl = SumOver(blocks, sums);
  if (threadIdx.x == 0) *total += scale * static_cast<Dtype>(kl);
}

template <typename Dtype, typename Loss, typename Prior>
__global__ void BackwardKernel(int n, Delta<Dtype> delta, Dtype kl_scale,
                               Loss loss, Prior prior, const Dtype* m,
                               Dtype* m_diff, double* sums) {
  const Dtype tau = Softplus(Raised(delta));
  double by_tau = 0, sum_sq = 0;
  ForEachTile(n, [&](int tile) {
    Dtype tile_by_tau = 0, tile_sum_sq = 0;
    ForTile(n, tile, [&](int i, int) {
      AddGradients(i, m_diff != nullptr, kl_scale != 0, tau, kl_scale, loss,
                   prior, m, m_diff, &tile_by_tau, &tile_sum_sq);
    });
    by_tau += tile_by_tau;
    sum_sq += tile_sum_sq;
  });
  AddUp(by_tau, &sums[blockIdx.x]);
  AddUp(sum_sq, &sums[gridDim.x + blockIdx.x]);
}

template <typename Dtype>
__global__ void AddDeltaGradientKernel(int n, int blocks, Delta<Dtype> delta,
                                       Dtype kl_scale, const double* sums,
                                       Dtype* delta_diff) {
  const double by_tau = SumOver(blocks, sums);
  const double sum_sq = SumOver(blocks, sums + blocks);
  if (threadIdx.x > 0) return;
  const Dtype raised = Raised(delta);
  *delta_diff +=
      DeltaGradient(raised, Softplus(raised), kl_scale,
                    static_cast<Dtype>(by_tau), static_cast<Dtype>(sum_sq), n);
}

template <typename Dtype>
__global__ void SampleOutputKernel(int n, NoiseKey key, uint64_t draw,
                                   const Dtype* variance, Dtype* epsilon,
                                   Dtype* output) {
  ForEachTile(n, [&](int tile) {
    FillTile(key, draw, tile);
    ForTile(n, tile, [&](int i, int offset) {
      epsilon[i] = TileNoise()[offset];
      output[i] = SampledOutput(output[i], variance[i], epsilon[i]);
    });
  });
}

template <typename Dtype>
__global__ void SampleOutputBackwardKernel(int n, const Dtype* output_diff,
                                           const Dtype* epsilon,
                                           const Dtype* variance,
                                           Dtype* variance_diff) {
  ForEachTile(n, [&](int tile) {
    ForTile(n, tile, [&](int i, int) {
      variance_diff[i] =
          OutputVarianceGradient(output_diff[i], variance[i], epsilon[i]);
    });
  });
}

template <typename Dtype>
__global__ void SquareBackwardKernel(int n, const Dtype* squares_diff,
                                     const Dtype* input, Dtype* input_diff) {
  ForEachTile(n, [&](int tile) {
    ForTile(n, tile, [&](int i, int) {
      input_diff[i] += SquareGradient(squares_diff[i], input[i]);
    });
  });
}

}  // namespace

int NumSums(int n) { return 2 * Blocks(n); }

template <typename Dtype, typename Write, typename Sum>
void Forward(int n, const Delta<Dtype>& delta, const Dtype* m,
             const Write& write, const Sum& sum, double* sums) {
  ForwardKernel<Dtype, Write, Sum>
      <<<Blocks(n), kThreads>>>(n, delta, m, write, sum, sums);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void AddKL(int n, const double* sums, Dtype scale, Dtype* total) {
  AddKLKernel<Dtype><<<1, kThreads>>>(Blocks(n), sums, scale, total);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype, typename Loss, typename Prior>
void Backward(int n, const Delta<Dtype>& delta, Dtype kl_scale,
              const Loss& loss, const Prior& prior, const Dtype* m,
              Dtype* m_diff, double* sums) {
  BackwardKernel<Dtype, Loss, Prior><<<Blocks(n), kThreads>>>(
      n, delta, kl_scale, loss, prior, m, m_diff, sums);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void AddDeltaGradient(int n, const Delta<Dtype>& delta, Dtype kl_scale,
                      const double* sums, Dtype* delta_diff) {
  AddDeltaGradientKernel<Dtype>
      <<<1, kThreads>>>(n, Blocks(n), delta, kl_scale, sums, delta_diff);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void SampleOutput(int n, const NoiseKey& key, uint64_t draw,
                  const Dtype* variance, Dtype* epsilon, Dtype* output) {
  SampleOutputKernel<Dtype>
      <<<Blocks(n), kThreads>>>(n, key, draw, variance, epsilon, output);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void SampleOutputBackward(int n, const Dtype* output_diff, const Dtype* epsilon,
                          const Dtype* variance, Dtype* variance_diff) {
  SampleOutputBackwardKernel<Dtype><<<Blocks(n), kThreads>>>(
      n, output_diff, epsilon, variance, variance_diff);
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void SquareBackward(int n, const Dtype* squares_diff, const Dtype* input,
                    Dtype* input_diff) {
  SquareBackwardKernel<Dtype>
      <<<Blocks(n), kThreads>>>(n, squares_diff, input, input_diff);
  CUDA_POST_KERNEL_CHECK;
}

#define INSTANTIATE_SUM(Dtype, Write, Sum)                                    \
  template void Forward(int, const Delta<Dtype>&, const Dtype*, const Write&, \
                        const Sum&, double*)
#define INSTANTIATE_WRITE(Dtype, Write)                     \
  INSTANTIATE_SUM(Dtype, Write, SumNothing);                \
  INSTANTIATE_SUM(Dtype, Write, SumKL<CommonPrior<Dtype>>); \
  INSTANTIATE_SUM(Dtype, Write, SumKL<OwnPrior<Dtype>>)
#define INSTANTIATE_LOSS(Dtype, Loss, Prior)                                  \
  template void Backward(int, const Delta<Dtype>&, Dtype, const Loss<Dtype>&, \
                         const Prior<Dtype>&, const Dtype*, Dtype*, double*)
#define INSTANTIATE(Dtype)                                                 \
  INSTANTIATE_WRITE(Dtype, WriteSample<Dtype>);                            \
  INSTANTIATE_WRITE(Dtype, WriteMean<Dtype>);                              \
  INSTANTIATE_WRITE(Dtype, WriteVariance<Dtype>);                          \
  INSTANTIATE_WRITE(Dtype, WriteNothing);                                  \
  INSTANTIATE_LOSS(Dtype, SampleLoss, CommonPrior);                        \
  INSTANTIATE_LOSS(Dtype, SampleLoss, OwnPrior);                           \
  INSTANTIATE_LOSS(Dtype, VarianceLoss, CommonPrior);                      \
  INSTANTIATE_LOSS(Dtype, VarianceLoss, OwnPrior);                         \
  template void AddKL(int, const double*, Dtype, Dtype*);                  \
  template void AddDeltaGradient(int, const Delta<Dtype>&, Dtype,          \
                                 const double*, Dtype*);                   \
  template void SampleOutput(int, const NoiseKey&, uint64_t, const Dtype*, \
                             Dtype*, Dtype*);                              \
  template void SampleOutputBackward(int, const Dtype*, const Dtype*,      \
                                     const Dtype*, Dtype*);                \
  template void SquareBackward(int, const Dtype*, const Dtype*, Dtype*)
INSTANTIATE(float);
INSTANTIATE(double);

}  // namespace gpu
}  // namespace bayes
}  // namespace caffe
