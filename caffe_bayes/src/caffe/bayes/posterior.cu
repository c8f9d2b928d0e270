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

// Writes weight i, whose noise is at `offset` within its tile.
template <typename Dtype>
__device__ void WriteWeight(const Written<Dtype>& to, int i, int offset,
                            Dtype m, Dtype tau) {
  if (to.what == Write::kSample) {
    const Dtype epsilon = TileNoise()[offset];
    to.epsilon[i] = epsilon;
    to.w[i] = SampledWeight(m, tau, epsilon);
  } else if (to.what == Write::kMean) {
    to.epsilon[i] = 0;
    to.w[i] = m;
  } else if (to.what == Write::kVariance) {
    to.w[i] = WeightVariance(m, tau);
  }
}

template <typename Dtype, typename Prior>
__global__ void ForwardKernel(int n, Delta<Dtype> delta, const Dtype* m,
                              Written<Dtype> written, Prior prior,
                              double* sums) {
  const Dtype raised = Raised(delta);
  const Dtype tau = Softplus(raised);
  double kl = 0;
  ForEachTile(n, [&](int tile) {
    if (written.what == Write::kSample) {
      FillTile(written.key, written.draw, tile);
    }
    Dtype tile_kl = 0;
    ForTile(n, tile, [&](int i, int offset) {
      WriteWeight(written, i, offset, m[i], tau);
      if (sums) tile_kl += WeightKL(m[i], tau, prior.mean(i), prior.std(i));
    });
    kl += tile_kl;
  });
  if (sums) AddUp(kl, &sums[blockIdx.x]);
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

template <typename Dtype, typename Prior>
void Forward(int n, const Delta<Dtype>& delta, const Dtype* m,
             const Written<Dtype>& written, const Prior& prior, double* sums) {
  ForwardKernel<Dtype, Prior>
      <<<Blocks(n), kThreads>>>(n, delta, m, written, prior, sums);
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

#define INSTANTIATE_PRIOR(Dtype, Prior)                                        \
  template void Forward(int, const Delta<Dtype>&, const Dtype*,                \
                        const Written<Dtype>&, const Prior&, double*);         \
  template void Backward(int, const Delta<Dtype>&, Dtype,                      \
                         const SampleLoss<Dtype>&, const Prior&, const Dtype*, \
                         Dtype*, double*);                                     \
  template void Backward(int, const Delta<Dtype>&, Dtype,                      \
                         const VarianceLoss<Dtype>&, const Prior&,             \
                         const Dtype*, Dtype*, double*)
#define INSTANTIATE(Dtype)                                                 \
  INSTANTIATE_PRIOR(Dtype, CommonPrior<Dtype>);                            \
  INSTANTIATE_PRIOR(Dtype, OwnPrior<Dtype>);                               \
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
