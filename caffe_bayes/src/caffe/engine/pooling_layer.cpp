// Pooling by the engine.

#include "caffe/layers/pooling_layer.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"

namespace caffe {

template <typename Dtype>
bool PoolingLayer<Dtype>::EngineWindows(engine::Windows* windows) const {
  *windows = {{height_, width_},
              {pooled_height_, pooled_width_},
              {kernel_h_, kernel_w_},
              {stride_h_, stride_w_},
              {pad_h_, pad_w_}};
  const PoolingParameter& param = this->layer_param_.pooling_param();
  return engine::IsChosen(param.engine()) && engine::IsPooled(*windows) &&
         param.pool() != PoolingParameter_PoolMethod_STOCHASTIC;
}

template <typename Dtype>
bool PoolingLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                          const vector<Blob<Dtype>*>& top) {
  engine::Windows windows;
  if (!EngineWindows(&windows)) return false;
  const bool maxima = this->layer_param_.pooling_param().pool() ==
                      PoolingParameter_PoolMethod_MAX;
  const bool mask = top.size() > 1;
  const Dtype* x = bottom[0]->cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  int* places = maxima && !mask ? max_idx_.mutable_cpu_data() : nullptr;
  Dtype* mask_data = mask ? top[1]->mutable_cpu_data() : nullptr;
  const ptrdiff_t in = windows.input_size(), out = windows.output_size();
  const int planes = bottom[0]->num() * channels_;
  const ptrdiff_t size = windows.padded_size();
  engine::ParallelGroups(planes, size, [&](ptrdiff_t first, int count) {
    const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
    const engine::Scratch<Dtype> padded(windows.are_inside() ? 0
                                                             : count * size);
    const Dtype* from = x + first * in;
    Dtype* to = y + first * out;
    if (!maxima) {
      kernels.average_pool(windows, count, from, padded, to);
    } else if (!mask) {
      kernels.max_pool(windows, count, from, padded, to, places + first * out);
    } else {
      const engine::Scratch<int> where(count * out);
      kernels.max_pool(windows, count, from, padded, to, where);
      std::copy(where + 0, where + count * out, mask_data + first * out);
    }
  });
  return true;
}

template <typename Dtype>
bool PoolingLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                           const vector<bool>& propagate_down,
                                           const vector<Blob<Dtype>*>& bottom) {
  engine::Windows windows;
  if (!propagate_down[0] || !EngineWindows(&windows)) return false;
  const bool maxima = this->layer_param_.pooling_param().pool() ==
                      PoolingParameter_PoolMethod_MAX;
  const bool mask = top.size() > 1;
  const Dtype* dy = top[0]->cpu_diff();
  Dtype* dx = bottom[0]->mutable_cpu_diff();
  const int* places = maxima && !mask ? max_idx_.cpu_data() : nullptr;
  const Dtype* mask_data = mask ? top[1]->cpu_data() : nullptr;
  const ptrdiff_t in = windows.input_size(), out = windows.output_size();
  const int planes = bottom[0]->num() * channels_;
  const ptrdiff_t size = windows.gradient().padded_size();
  engine::ParallelGroups(planes, size, [&](ptrdiff_t first, int count) {
    const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
    const Dtype* from = dy + first * out;
    Dtype* to = dx + first * in;
    if (!maxima) {
      const engine::Scratch<Dtype> padded(count * size);
      kernels.average_pool_gradient(windows, count, from, padded, to);
    } else if (!mask) {
      kernels.max_pool_gradient(windows, count, from, places + first * out, to);
    } else {
      const engine::Scratch<int> where(count * out);
      std::copy(mask_data + first * out, mask_data + (first + count) * out,
                where + 0);
      kernels.max_pool_gradient(windows, count, from, where, to);
    }
  });
  return true;
}

#define INSTANTIATE_POOLING(T)       \
  INSTANTIATE_BOTH(PoolingLayer, T); \
  template bool PoolingLayer<T>::EngineWindows(engine::Windows* windows) const
INSTANTIATE_POOLING(float);
INSTANTIATE_POOLING(double);

}  // namespace caffe
