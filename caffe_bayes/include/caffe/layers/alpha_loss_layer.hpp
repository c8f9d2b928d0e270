#ifndef CAFFE_ALPHA_LOSS_LAYER_HPP_
#define CAFFE_ALPHA_LOSS_LAYER_HPP_

#include <vector>

#include "caffe/bayes/alpha.hpp"
#include "caffe/layers/softmax_loss_layer.hpp"

namespace caffe {

/**
 * @brief What SoftmaxWithLoss is with loss_param.alpha: the loss of what
 * several draws of the weights say together of each image (bayes::AlphaLoss).
 *
 * There are K times as many images in bottom[0], the scores, as in bottom[1],
 * the labels: a Tile layer repeats the batch K times, and draws_per_batch: K
 * gives each repetition a draw of its own. With as many of both it is the stock
 * loss, whatever alpha is.
 */
template <typename Dtype>
class AlphaLossLayer : public SoftmaxWithLossLayer<Dtype> {
 public:
  explicit AlphaLossLayer(const LayerParameter& param)
      : SoftmaxWithLossLayer<Dtype>(param) {}
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override;

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override;
  void Forward_gpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override;
  void Backward_cpu(const vector<Blob<Dtype>*>& top,
                    const vector<bool>& propagate_down,
                    const vector<Blob<Dtype>*>& bottom) override;
  void Backward_gpu(const vector<Blob<Dtype>*>& top,
                    const vector<bool>& propagate_down,
                    const vector<Blob<Dtype>*>& bottom) override;

 private:
  /// The batch, at places of the CPU or of the GPU.
  bayes::AlphaBatch<Dtype> batch(const Dtype* label, const Dtype* probabilities,
                                 Dtype* shares) const;
  /// Gives top the mean of the losses, of which `valid` are not ignored.
  void SetTop(Dtype sum, int valid, const vector<Blob<Dtype>*>& top);

  int draws_;
  Blob<Dtype> shares_;  // draws x labels
  Blob<Dtype> losses_;
  Dtype normalizer_;
};

}  // namespace caffe

#endif  // CAFFE_ALPHA_LOSS_LAYER_HPP_
