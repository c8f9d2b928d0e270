#include <cmath>
#include <vector>

#include "caffe/layers/alpha_loss_layer.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {

namespace {

template <typename Dtype>
__global__ void AlphaForwardKernel(bayes::AlphaBatch<Dtype> batch,
                                   Dtype* losses) {
  CUDA_KERNEL_LOOP(i, batch.labels) { losses[i] = batch.Forward(i); }
}

template <typename Dtype>
__global__ void AlphaBackwardKernel(bayes::AlphaBatch<Dtype> batch, Dtype scale,
                                    Dtype* diff) {
  CUDA_KERNEL_LOOP(i, batch.labels) { batch.Backward(i, scale, diff); }
}

}  // namespace

template <typename Dtype>
void AlphaLossLayer<Dtype>::Forward_gpu(const vector<Blob<Dtype>*>& bottom,
                                        const vector<Blob<Dtype>*>& top) {
  this->softmax_layer_->Forward(this->softmax_bottom_vec_,
                                this->softmax_top_vec_);
  const auto batch = this->batch(bottom[1]->gpu_data(), this->prob_.gpu_data(),
                                 shares_.mutable_gpu_data());
  AlphaForwardKernel<Dtype>
      <<<CAFFE_GET_BLOCKS(batch.labels), CAFFE_CUDA_NUM_THREADS>>>(
          batch, losses_.mutable_gpu_data());
  CUDA_POST_KERNEL_CHECK;
  Dtype sum, valid = batch.labels;
  // No loss is negative.
  caffe_gpu_asum(batch.labels, losses_.gpu_data(), &sum);
  // The shares of a label add up to 1, unless it is ignored.
  if (batch.has_ignored) {
    caffe_gpu_asum(shares_.count(), shares_.gpu_data(), &valid);
  }
  SetTop(sum, static_cast<int>(std::lround(valid)), top);
}

template <typename Dtype>
void AlphaLossLayer<Dtype>::Backward_gpu(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  CHECK(!propagate_down[1]) << "a label has no gradient";
  if (!propagate_down[0]) return;
  const auto batch = this->batch(bottom[1]->gpu_data(), this->prob_.gpu_data(),
                                 shares_.mutable_gpu_data());
  const Dtype scale = top[0]->cpu_diff()[0] / normalizer_;
  AlphaBackwardKernel<Dtype>
      <<<CAFFE_GET_BLOCKS(batch.labels), CAFFE_CUDA_NUM_THREADS>>>(
          batch, scale, bottom[0]->mutable_gpu_diff());
  CUDA_POST_KERNEL_CHECK;
}

INSTANTIATE_LAYER_GPU_FUNCS(AlphaLossLayer);

}  // namespace caffe
