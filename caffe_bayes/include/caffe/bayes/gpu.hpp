#ifndef CAFFE_BAYES_GPU_HPP_
#define CAFFE_BAYES_GPU_HPP_

// The functions that launch the kernels of posterior.cu and noise.cu. All
// pointers are to memory of the device. Nothing waits, and nothing is copied: a
// kernel has what it needs from the host among its arguments.
//
// No number depends on the device: how the work is divided depends on n alone,
// and sums are added up in one order.

#include <cstdint>

#include "caffe/bayes/noise.hpp"
#include "caffe/bayes/weights.hpp"

namespace caffe {
namespace bayes {
namespace gpu {

/// A posterior's delta, one for each group of weights, and the floor below
/// which it counts as the floor.
template <typename Dtype>
struct Delta {
  Dtype* values;
  Dtype floor;
  Grouping grouping;
};

/// What Forward writes for each weight: noise and the weight, 0 and the mean,
/// the variance, or nothing.
enum class Write { kSample, kMean, kVariance, kNothing };
template <typename Dtype>
struct Written {
  Write what = Write::kNothing;
  Dtype* w = nullptr;  // the weights, or their variances
  Dtype* epsilon = nullptr;
  NoiseKey key = {};
  uint64_t draw = 0;
};

/// How many numbers `sums` has room for, below, where there are n weights.
int NumSums(int n);

/// Raises delta to its floor, writes, and leaves sums for AddKL, if `sums` is
/// not null.
template <typename Dtype, typename Prior>
void Forward(int n, const Delta<Dtype>& delta, const Dtype* m,
             const Written<Dtype>& written, const Prior& prior, double* sums);

/// total += scale * KL.
template <typename Dtype>
void AddKL(int n, const double* sums, Dtype scale, Dtype* total);

/// Where all weights are one group: adds to m_diff, if it is not null, and
/// leaves sums for AddDeltaGradient.
template <typename Dtype, typename Loss, typename Prior>
void Backward(int n, const Delta<Dtype>& delta, Dtype kl_scale,
              const Loss& loss, const Prior& prior, const Dtype* m,
              Dtype* m_diff, double* sums);

template <typename Dtype>
void AddDeltaGradient(int n, const Delta<Dtype>& delta, Dtype kl_scale,
                      const double* sums, Dtype* delta_diff);

/// Where there are several groups: adds to m_diff and to delta_diff, each if it
/// is not null.
template <typename Dtype, typename Loss, typename Prior>
void BackwardGroups(int n, const Delta<Dtype>& delta, Dtype kl_scale,
                    const Loss& loss, const Prior& prior, const Dtype* m,
                    Dtype* m_diff, Dtype* delta_diff);

// Drawn outputs: see SampleOutput, SampleOutputBackward and SquareBackward.
template <typename Dtype>
void SampleOutput(int n, const NoiseKey& key, uint64_t draw, uint64_t offset,
                  const Dtype* variance, Dtype* epsilon, Dtype* output);
template <typename Dtype>
void SampleOutputBackward(int n, const Dtype* output_diff, const Dtype* epsilon,
                          const Dtype* variance, Dtype* variance_diff);
template <typename Dtype>
void SquareBackward(int n, const Dtype* squares_diff, const Dtype* input,
                    Dtype* input_diff);

/// out[i] = word offset + i % period of the draw, for 0 <= i < n.
void FillBits(const NoiseKey& key, uint64_t draw, uint64_t offset, int period,
              int n, uint32_t* out);

}  // namespace gpu
}  // namespace bayes
}  // namespace caffe

// Leaves a function, in GPU mode, with what the code for the GPU returns.
#ifdef CPU_ONLY
#define RETURN_IF_GPU(call) \
  if (Caffe::mode() == Caffe::GPU) NO_GPU
#else
#define RETURN_IF_GPU(call) \
  if (Caffe::mode() == Caffe::GPU) return call
#endif

#endif  // CAFFE_BAYES_GPU_HPP_
