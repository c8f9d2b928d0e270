#include "caffe/bayes/gpu.hpp"
#include "caffe/bayes/tiles.cuh"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {
namespace gpu {

namespace {

template <typename Dtype>
__device__ Dtype Raised(const Delta<Dtype>& delta, int group) {
  return RaisedDelta(delta.values[group], delta.floor);
}

// The tau of weight i: of the one group, read once, or of the weight's own.
template <typename Dtype>
struct OneGroup {
  Dtype common;
  __device__ explicit OneGroup(const Delta<Dtype>& delta)
      : common(Softplus(Raised(delta, 0))) {}
  __device__ Dtype tau(int) const { return common; }
};
template <typename Dtype>
struct Groups {
  const Delta<Dtype>& delta;
  __device__ explicit Groups(const Delta<Dtype>& delta) : delta(delta) {}
  __device__ Dtype tau(int i) const {
    return Softplus(Raised(delta, delta.grouping.Group(i)));
  }
};

// Calls function(group) for each group of this thread.
template <typename Function>
__device__ void ForEachGroup(const Grouping& grouping, Function function) {
  for (int group = blockIdx.x * kThreads + threadIdx.x; group < grouping.groups;
       group += gridDim.x * kThreads) {
    function(group);
  }
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

template <typename Dtype, template <typename> class Taus, typename Prior>
__global__ void ForwardKernel(int n, Delta<Dtype> delta, const Dtype* m,
                              Written<Dtype> written, Prior prior,
                              double* sums) {
  const Taus<Dtype> taus(delta);
  double kl = 0;
  ForEachTile(n, [&](int tile) {
    if (written.what == Write::kSample) {
      FillTile(written.key, written.draw, tile);
    }
    Dtype tile_kl = 0;
    ForTile(n, tile, [&](int i, int offset) {
      const Dtype tau = taus.tau(i);
      WriteWeight(written, i, offset, m[i], tau);
      if (sums) tile_kl += WeightKL(m[i], tau, prior.mean(i), prior.std(i));
    });
    kl += tile_kl;
  });
  if (sums) AddUp(kl, &sums[blockIdx.x]);
  // Threads that read it later raise it to the same.
  ForEachGroup(delta.grouping, [&](int group) {
    if (delta.values[group] < delta.floor) delta.values[group] = delta.floor;
  });
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
  const Dtype tau = Softplus(Raised(delta, 0));
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
  const Dtype raised = Raised(delta, 0);
  *delta_diff +=
      DeltaGradient(raised, Softplus(raised), kl_scale,
                    static_cast<Dtype>(by_tau), static_cast<Dtype>(sum_sq), n);
}

// Sums over the weights of one group, from which its delta's gradient comes.
template <typename Dtype>
struct GroupSums {
  Dtype delta, tau;
  double by_tau = 0, sum_sq = 0;
  __device__ GroupSums(const Delta<Dtype>& from, int group)
      : delta(Raised(from, group)), tau(Softplus(delta)) {}

  template <typename Loss, typename Prior>
  __device__ void Add(int i, Dtype kl_scale, const Loss& loss,
                      const Prior& prior, const Dtype* m, Dtype* m_diff) {
    Dtype by = 0, sq = 0;
    AddGradients(i, m_diff != nullptr, kl_scale != 0, tau, kl_scale, loss,
                 prior, m, m_diff, &by, &sq);
    by_tau += by;
    sum_sq += sq;
  }
  __device__ Dtype Gradient(Dtype kl_scale, int count) const {
    return DeltaGradient(delta, tau, kl_scale, static_cast<Dtype>(by_tau),
                         static_cast<Dtype>(sum_sq), count);
  }
};

// For groups without neighbours: each weight by itself, or the columns of a
// matrix. A thread takes a group.
template <typename Dtype, typename Loss, typename Prior>
__global__ void BackwardColumnsKernel(int count, Delta<Dtype> delta,
                                      Dtype kl_scale, Loss loss, Prior prior,
                                      const Dtype* m, Dtype* m_diff,
                                      Dtype* delta_diff) {
  ForEachGroup(delta.grouping, [&](int group) {
    GroupSums<Dtype> sums(delta, group);
    for (int k = 0; k < count; ++k) {
      sums.Add(delta.grouping.Weight(group, k), kl_scale, loss, prior, m,
               m_diff);
    }
    if (delta_diff) delta_diff[group] += sums.Gradient(kl_scale, count);
  });
}

// For groups of neighbours: a block of threads takes a group.
template <typename Dtype, typename Loss, typename Prior>
__global__ void BackwardRowsKernel(int count, Delta<Dtype> delta,
                                   Dtype kl_scale, Loss loss, Prior prior,
                                   const Dtype* m, Dtype* m_diff,
                                   Dtype* delta_diff) {
  for (int group = blockIdx.x; group < delta.grouping.groups;
       group += gridDim.x) {
    GroupSums<Dtype> sums(delta, group);
    for (int k = threadIdx.x; k < count; k += kThreads) {
      sums.Add(delta.grouping.Weight(group, k), kl_scale, loss, prior, m,
               m_diff);
    }
    sums.by_tau = BlockSum(sums.by_tau);
    sums.sum_sq = BlockSum(sums.sum_sq);
    if (threadIdx.x == 0 && delta_diff) {
      delta_diff[group] += sums.Gradient(kl_scale, count);
    }
  }
}

template <typename Dtype>
__global__ void SampleOutputKernel(int n, NoiseKey key, uint64_t draw,
                                   uint64_t first, const Dtype* variance,
                                   Dtype* epsilon, Dtype* output) {
  ForEachTile(n, [&](int tile) {
    FillTile(key, draw, tile, first);
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
  if (delta.grouping.groups == 1) {
    ForwardKernel<Dtype, OneGroup, Prior>
        <<<Blocks(n), kThreads>>>(n, delta, m, written, prior, sums);
  } else {
    ForwardKernel<Dtype, Groups, Prior>
        <<<Blocks(n), kThreads>>>(n, delta, m, written, prior, sums);
  }
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

template <typename Dtype, typename Loss, typename Prior>
void BackwardGroups(int n, const Delta<Dtype>& delta, Dtype kl_scale,
                    const Loss& loss, const Prior& prior, const Dtype* m,
                    Dtype* m_diff, Dtype* delta_diff) {
  const int groups = delta.grouping.groups, count = n / groups;
  if (delta.grouping.inner == 1) {
    BackwardColumnsKernel<Dtype, Loss, Prior><<<Blocks(groups), kThreads>>>(
        count, delta, kl_scale, loss, prior, m, m_diff, delta_diff);
  } else {
    BackwardRowsKernel<Dtype, Loss, Prior>
        <<<std::min(groups, kMostBlocks), kThreads>>>(
            count, delta, kl_scale, loss, prior, m, m_diff, delta_diff);
  }
  CUDA_POST_KERNEL_CHECK;
}

template <typename Dtype>
void SampleOutput(int n, const NoiseKey& key, uint64_t draw, uint64_t offset,
                  const Dtype* variance, Dtype* epsilon, Dtype* output) {
  SampleOutputKernel<Dtype><<<Blocks(n), kThreads>>>(n, key, draw, offset,
                                                     variance, epsilon, output);
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

#define INSTANTIATE_LOSS(Dtype, Prior, Loss)                                 \
  template void Backward(int, const Delta<Dtype>&, Dtype, const Loss&,       \
                         const Prior&, const Dtype*, Dtype*, double*);       \
  template void BackwardGroups(int, const Delta<Dtype>&, Dtype, const Loss&, \
                               const Prior&, const Dtype*, Dtype*, Dtype*)
#define INSTANTIATE_PRIOR(Dtype, Prior)                                \
  template void Forward(int, const Delta<Dtype>&, const Dtype*,        \
                        const Written<Dtype>&, const Prior&, double*); \
  INSTANTIATE_LOSS(Dtype, Prior, SampleLoss<Dtype>);                   \
  INSTANTIATE_LOSS(Dtype, Prior, VarianceLoss<Dtype>)
#define INSTANTIATE(Dtype)                                             \
  INSTANTIATE_PRIOR(Dtype, CommonPrior<Dtype>);                        \
  INSTANTIATE_PRIOR(Dtype, OwnPrior<Dtype>);                           \
  template void AddKL(int, const double*, Dtype, Dtype*);              \
  template void AddDeltaGradient(int, const Delta<Dtype>&, Dtype,      \
                                 const double*, Dtype*);               \
  template void SampleOutput(int, const NoiseKey&, uint64_t, uint64_t, \
                             const Dtype*, Dtype*, Dtype*);            \
  template void SampleOutputBackward(int, const Dtype*, const Dtype*,  \
                                     const Dtype*, Dtype*);            \
  template void SquareBackward(int, const Dtype*, const Dtype*, Dtype*)
INSTANTIATE(float);
INSTANTIATE(double);

}  // namespace gpu
}  // namespace bayes
}  // namespace caffe
