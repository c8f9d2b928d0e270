#ifndef CAFFE_MOMENTS_LAYER_HPP_
#define CAFFE_MOMENTS_LAYER_HPP_

#include <string>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/layer.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {

/**
 * @brief What a layer does to a mean and a variance: bottom[0] and bottom[1]
 * hold those of its input, number by number, and top[0] and top[1] those of its
 * output. These layers are for inference; bayescaffe builds nets of them.
 *
 * Layers that add and multiply need none of these, as convolutions and inner
 * products of other weights do it: with independent weights of mean w and
 * variance u, the sum of w_i x_i has the mean sum(E w_i E x_i) and the variance
 * sum((w_i^2 + u_i) Var x_i + u_i (E x_i)^2).
 */
template <typename Dtype>
class MomentsLayer : public Layer<Dtype> {
 public:
  explicit MomentsLayer(const LayerParameter& param) : Layer<Dtype>(param) {}
  void LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                  const vector<Blob<Dtype>*>& top) override;
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override;
  int ExactNumBottomBlobs() const override { return 2; }
  int ExactNumTopBlobs() const override { return 2; }

 protected:
  /// Has no effect, as nothing is learned here.
  void Backward_cpu(const vector<Blob<Dtype>*>&, const vector<bool>&,
                    const vector<Blob<Dtype>*>&) override {}

  /// The type of the layer that computes the mean from the mean, or "".
  virtual std::string of_mean() const { return ""; }
  /// What that layer has as tops besides.
  virtual vector<Blob<Dtype>*> more_tops() { return {}; }
  /// The mean of the output, by that layer.
  void ForwardMean(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top);

 private:
  vector<Blob<Dtype>*> tops_of_mean(const vector<Blob<Dtype>*>& top);

  shared_ptr<Layer<Dtype>> mean_layer_;
};

/// Of a Gaussian input: closed forms (ReluMoments in engine/kernels).
template <typename Dtype>
class ReLUMomentsLayer : public MomentsLayer<Dtype> {
 public:
  using MomentsLayer<Dtype>::MomentsLayer;
  const char* type() const override { return "ReLUMoments"; }

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override;
};

/// Of max pooling, approximately: those of the input whose mean is largest.
template <typename Dtype>
class PoolingMomentsLayer : public MomentsLayer<Dtype> {
 public:
  using MomentsLayer<Dtype>::MomentsLayer;
  const char* type() const override { return "PoolingMoments"; }

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override;
  std::string of_mean() const override { return "Pooling"; }
  vector<Blob<Dtype>*> more_tops() override { return {&mask_}; }

 private:
  Blob<Dtype> mask_;  // where in its plane the largest mean is
};

/// Approximately: the factor of each number is taken to be that of the means.
template <typename Dtype>
class LRNMomentsLayer : public MomentsLayer<Dtype> {
 public:
  using MomentsLayer<Dtype>::MomentsLayer;
  const char* type() const override { return "LRNMoments"; }

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override;
  std::string of_mean() const override { return "LRN"; }
};

}  // namespace caffe

#endif  // CAFFE_MOMENTS_LAYER_HPP_
