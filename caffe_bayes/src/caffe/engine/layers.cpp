// Where Caffe's layers meet the engine: members that the patches declare, in
// terms of the engine's functions.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layers/conv_layer.hpp"
#include "caffe/layers/inner_product_layer.hpp"
#include "caffe/layers/softmax_layer.hpp"

namespace caffe {

namespace engine {

namespace {

bool IsWantedByEnvironment() {
  const char* said = std::getenv("BAYESCAFFE_ENGINE");
  return !said || strcasecmp(said, "caffe");
}

std::atomic<bool>& IsDefault() {
  static std::atomic<bool> is_default(IsWantedByEnvironment());
  return is_default;
}

}  // namespace

bool IsChosen(int engine) { return engine == 0 && IsDefault(); }

void SetDefault(bool is_engine) { IsDefault() = is_engine; }

template <typename T>
void SetZero(int n, T* x) {
  ParallelPortions(n, [&](int, int first, int count) {
    std::fill(x + first, x + first + count, T(0));
  });
}

template void SetZero(int n, float* x);
template void SetZero(int n, double* x);

}  // namespace engine

// ---- Convolution ------------------------------------------------------------

template <typename Dtype>
bool ConvolutionLayer<Dtype>::EngineShape(
    engine::ConvolutionShape* shape) const {
  if (this->num_spatial_axes_ != 2 ||
      !engine::IsChosen(this->layer_param_.convolution_param().engine())) {
    return false;
  }
  shape->images = this->num_;
  shape->channels = this->channels_;
  shape->outputs = this->num_output_;
  shape->groups = this->group_;
  for (int axis = 0; axis < 2; ++axis) {
    shape->input[axis] = this->conv_input_shape_.cpu_data()[axis + 1];
    shape->kernel[axis] = this->kernel_shape_.cpu_data()[axis];
    shape->stride[axis] = this->stride_.cpu_data()[axis];
    shape->pad[axis] = this->pad_.cpu_data()[axis];
    shape->dilation[axis] = this->dilation_.cpu_data()[axis];
  }
  return true;
}

template <typename Dtype>
bool ConvolutionLayer<Dtype>::ForwardByEngine(
    const vector<Blob<Dtype>*>& bottom, const vector<Blob<Dtype>*>& top) {
  engine::ConvolutionShape shape;
  if (!EngineShape(&shape)) return false;
  const Dtype* bias = this->bias_term_ ? this->blobs_[1]->cpu_data() : nullptr;
  for (int i = 0; i < bottom.size(); ++i) {
    engine::ConvolutionForward(shape, bottom[i]->cpu_data(),
                               this->blobs_[0]->cpu_data(), bias,
                               top[i]->mutable_cpu_data());
  }
  return true;
}

template <typename Dtype>
bool ConvolutionLayer<Dtype>::BackwardByEngine(
    const vector<Blob<Dtype>*>& top, const vector<bool>& propagate_down,
    const vector<Blob<Dtype>*>& bottom) {
  engine::ConvolutionShape shape;
  if (!EngineShape(&shape)) return false;
  for (int i = 0; i < top.size(); ++i) {
    const Dtype* top_diff = top[i]->cpu_diff();
    if (this->bias_term_ && this->param_propagate_down_[1]) {
      engine::ConvolutionBiasGradient(shape, top_diff,
                                      this->blobs_[1]->mutable_cpu_diff());
    }
    if (this->param_propagate_down_[0]) {
      engine::ConvolutionWeightGradient(shape, bottom[i]->cpu_data(), top_diff,
                                        this->blobs_[0]->mutable_cpu_diff());
    }
    if (propagate_down[i]) {
      engine::ConvolutionInputGradient(shape, top_diff,
                                       this->blobs_[0]->cpu_data(),
                                       bottom[i]->mutable_cpu_diff());
    }
  }
  return true;
}

// ---- InnerProduct -----------------------------------------------------------
// M_ inputs of K_ numbers each, N_ outputs.

template <typename Dtype>
bool InnerProductLayer<Dtype>::ForwardByEngine(
    const vector<Blob<Dtype>*>& bottom, const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(this->layer_param_.inner_product_param().engine())) {
    return false;
  }
  // As w x, so that what has to be transposed is x, the smaller one.
  const engine::Matrix<Dtype> x = {bottom[0]->cpu_data(), 1, K_};
  const engine::Matrix<Dtype> w = {this->blobs_[0]->cpu_data(),
                                   transpose_ ? 1 : K_, transpose_ ? N_ : 1};
  engine::Start<Dtype> start;
  if (bias_term_) start.row_bias = this->blobs_[1]->cpu_data();
  engine::Multiply(N_, M_, K_, w, x, top[0]->mutable_cpu_data(), N_, true,
                   start);
  return true;
}

template <typename Dtype>
bool InnerProductLayer<Dtype>::BackwardByEngine(
    const vector<Blob<Dtype>*>& top, const vector<bool>& propagate_down,
    const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(this->layer_param_.inner_product_param().engine())) {
    return false;
  }
  const Dtype* x = bottom[0]->cpu_data();
  const Dtype* dy = top[0]->cpu_diff();
  engine::Start<Dtype> add;
  add.add = true;
  if (this->param_propagate_down_[0]) {
    Dtype* dw = this->blobs_[0]->mutable_cpu_diff();
    if (transpose_) {
      engine::Multiply<Dtype>(K_, N_, M_, {x, 1, K_}, {dy, N_, 1}, dw, N_,
                              false, add);
    } else {
      engine::Multiply<Dtype>(N_, K_, M_, {dy, 1, N_}, {x, K_, 1}, dw, K_,
                              false, add);
    }
  }
  if (bias_term_ && this->param_propagate_down_[1]) {
    Dtype* dbias = this->blobs_[1]->mutable_cpu_diff();
    for (int m = 0; m < M_; ++m) {
      for (int n = 0; n < N_; ++n) dbias[n] += dy[m * N_ + n];
    }
  }
  if (propagate_down[0]) {
    const engine::Matrix<Dtype> w = {this->blobs_[0]->cpu_data(),
                                     transpose_ ? 1 : K_, transpose_ ? N_ : 1};
    engine::Multiply<Dtype>(M_, K_, N_, {dy, N_, 1}, w,
                            bottom[0]->mutable_cpu_diff(), K_, false,
                            engine::Start<Dtype>());
  }
  return true;
}

// ---- Softmax ----------------------------------------------------------------

template <typename Dtype>
bool SoftmaxLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                          const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(this->layer_param_.softmax_param().engine())) {
    return false;
  }
  const Dtype* x = bottom[0]->cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  const int channels = bottom[0]->shape(softmax_axis_);
  const int size = channels * inner_num_;
  const int at_once = std::max(1, engine::kPortion / std::max(1, size));
  engine::ParallelFor((outer_num_ + at_once - 1) / at_once, [&](int task) {
    const engine::Scratch<Dtype> scratch(inner_num_);
    const int last = std::min(outer_num_, (task + 1) * at_once);
    for (ptrdiff_t i = static_cast<ptrdiff_t>(task) * at_once; i < last; ++i) {
      engine::BestKernels<Dtype>().softmax(channels, inner_num_, x + i * size,
                                           y + i * size, scratch);
    }
  });
  return true;
}

#define INSTANTIATE_ALL(T)                        \
  INSTANTIATE_BOTH(ConvolutionLayer, T);          \
  INSTANTIATE_BOTH(InnerProductLayer, T);         \
  INSTANTIATE_FORWARD(SoftmaxLayer, T);           \
  template bool ConvolutionLayer<T>::EngineShape( \
      engine::ConvolutionShape* shape) const
INSTANTIATE_ALL(float);
INSTANTIATE_ALL(double);

}  // namespace caffe
