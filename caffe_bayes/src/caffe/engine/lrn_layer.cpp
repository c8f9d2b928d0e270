// Local response normalisation by the engine.

#include "caffe/layers/lrn_layer.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {

namespace {

// How many pixels of all channels of an image a thread takes at a time. The
// channels that one needs at a time fit into the innermost cache.
const int kPixels = 512;

// Calls work(at, n) for each such portion, which is n numbers from `at` on and
// those behind them in the other channels.
template <typename Work>
void ParallelPixels(int images, int channels, int plane, const Work& work) {
  const int portions = (plane + kPixels - 1) / kPixels;
  engine::ParallelFor(images * portions, [&](int i) {
    const ptrdiff_t image = i / portions;
    const int first = i % portions * kPixels;
    work(image * channels * plane + first, std::min(kPixels, plane - first));
  });
}

}  // namespace

template <typename Dtype>
bool LRNLayer<Dtype>::EngineWindows(engine::Windows* windows) const {
  *windows = {{height_, width_},
              {height_, width_},
              {size_, size_},
              {1, 1},
              {pre_pad_, pre_pad_}};
  const LRNParameter& param = this->layer_param_.lrn_param();
  const bool within =
      param.norm_region() == LRNParameter_NormRegion_WITHIN_CHANNEL;
  // Powers that are 1 even of NaN are upstream's.
  return engine::IsChosen(param.engine()) && alpha_ * beta_ != 0 &&
         (!within || engine::IsPooled(*windows));
}

template <typename Dtype>
bool LRNLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                      const vector<Blob<Dtype>*>& top) {
  engine::Windows windows;
  if (!EngineWindows(&windows)) return false;
  const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
  const Dtype* x = bottom[0]->cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  const int plane = height_ * width_;
  if (this->layer_param_.lrn_param().norm_region() ==
      LRNParameter_NormRegion_ACROSS_CHANNELS) {
    const engine::Normalization<Dtype> norm = {size_, alpha_ / size_, beta_,
                                               k_};
    Dtype* scale = scale_.mutable_cpu_data();
    ParallelPixels(num_, channels_, plane, [&](ptrdiff_t at, int n) {
      const engine::Scratch<Dtype> scratch(2 * n);
      kernels.lrn_across(norm, channels_, plane, n, x + at, scale + at, y + at,
                         scratch);
    });
    return true;
  }
  const engine::Normalization<Dtype> norm = {size_, alpha_, beta_, 1};
  Dtype* average = pool_output_.mutable_cpu_data();
  const ptrdiff_t size = windows.padded_size();
  engine::ParallelGroups(
      num_ * channels_, size, [&](ptrdiff_t first, int count) {
        const ptrdiff_t at = first * plane;
        const int n = count * plane;
        const engine::Scratch<Dtype> squares(n), padded(count * size);
        for (int i = 0; i < n; ++i) squares[i] = x[at + i] * x[at + i];
        kernels.average_pool(windows, count, squares, padded, average + at);
        kernels.lrn_within(norm, n, x + at, average + at, y + at);
      });
  return true;
}

template <typename Dtype>
bool LRNLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                       const vector<bool>& propagate_down,
                                       const vector<Blob<Dtype>*>& bottom) {
  engine::Windows windows;
  if (!EngineWindows(&windows)) return false;
  if (!propagate_down[0]) return true;
  const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
  const Dtype* x = bottom[0]->cpu_data();
  const Dtype* y = top[0]->cpu_data();
  const Dtype* dy = top[0]->cpu_diff();
  Dtype* dx = bottom[0]->mutable_cpu_diff();
  const int plane = height_ * width_;
  if (this->layer_param_.lrn_param().norm_region() ==
      LRNParameter_NormRegion_ACROSS_CHANNELS) {
    const engine::Normalization<Dtype> norm = {size_, alpha_ / size_, beta_,
                                               k_};
    const Dtype* scale = scale_.cpu_data();
    ParallelPixels(num_, channels_, plane, [&](ptrdiff_t at, int n) {
      const ptrdiff_t kept = std::min(size_, channels_);
      const engine::Scratch<Dtype> scratch((kept + 2) * n);
      kernels.lrn_across_gradient(norm, channels_, plane, n, x + at, scale + at,
                                  y + at, dy + at, dx + at, scratch);
    });
    return true;
  }
  const engine::Normalization<Dtype> norm = {size_, alpha_, beta_, 1};
  const Dtype* average = pool_output_.cpu_data();
  const ptrdiff_t size = windows.gradient().padded_size();
  engine::ParallelGroups(
      num_ * channels_, size, [&](ptrdiff_t first, int count) {
        const ptrdiff_t at = first * plane;
        const int n = count * plane;
        const engine::Scratch<Dtype> daverage(n), dsquares(n);
        const engine::Scratch<Dtype> padded(count * size);
        kernels.lrn_within_gradient(norm, n, x + at, average + at, dy + at,
                                    daverage, dx + at);
        kernels.average_pool_gradient(windows, count, daverage, padded,
                                      dsquares);
        for (int i = 0; i < n; ++i) {
          dx[at + i] += 2 * x[at + i] * dsquares[i];
        }
      });
  return true;
}

#define INSTANTIATE_LRN(T)       \
  INSTANTIATE_BOTH(LRNLayer, T); \
  template bool LRNLayer<T>::EngineWindows(engine::Windows* windows) const
INSTANTIATE_LRN(float);
INSTANTIATE_LRN(double);

}  // namespace caffe
