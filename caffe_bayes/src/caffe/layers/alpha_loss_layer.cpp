#include "caffe/layers/alpha_loss_layer.hpp"

#include <vector>

#include "caffe/layer_factory.hpp"
#include "caffe/util/checks.hpp"

namespace caffe {

template <typename Dtype>
void AlphaLossLayer<Dtype>::Reshape(const vector<Blob<Dtype>*>& bottom,
                                    const vector<Blob<Dtype>*>& top) {
  this->softmax_layer_->Reshape(this->softmax_bottom_vec_,
                                this->softmax_top_vec_);
  const Blob<Dtype>& scores = *bottom[0];
  const int axis =
      scores.CanonicalAxisIndex(this->layer_param_.softmax_param().axis());
  CHECK_GT(axis, 0) << "with loss_param.alpha, the first axis of the scores is "
                       "that of the images; softmax_param.axis is 0";
  const int labels = bottom[1]->count();
  const int images = bottom[1]->shape(0);
  const int found = scores.count() / scores.shape(axis);
  CHECK(labels > 0 && found >= labels && found % labels == 0 &&
        scores.shape(0) % images == 0 &&
        scores.shape(0) / images == found / labels)
      << "has scores of shape " << scores.shape_string()
      << " and labels of shape " << bottom[1]->shape_string()
      << "; with loss_param.alpha there must be as many images of scores as of "
         "labels, or a multiple: one for each draw";
  draws_ = found / labels;
  this->softmax_axis_ = axis;
  this->inner_num_ = scores.count(axis + 1);
  this->outer_num_ = labels / this->inner_num_;
  top[0]->Reshape(vector<int>());
  if (top.size() > 1) top[1]->ReshapeLike(scores);
  shares_.Reshape({draws_, labels});
  losses_.Reshape({labels});
}

template <typename Dtype>
bayes::AlphaBatch<Dtype> AlphaLossLayer<Dtype>::batch(
    const Dtype* label, const Dtype* probabilities, Dtype* shares) const {
  bayes::AlphaBatch<Dtype> batch = {};
  batch.draws = draws_;
  batch.labels = losses_.count();
  batch.classes = this->prob_.shape(this->softmax_axis_);
  batch.places = this->inner_num_;
  batch.alpha = this->layer_param_.loss_param().alpha();
  batch.has_ignored = this->has_ignore_label_;
  batch.ignored = this->has_ignore_label_ ? this->ignore_label_ : 0;
  batch.label = label;
  batch.probabilities = probabilities;
  batch.shares = shares;
  return batch;
}

template <typename Dtype>
void AlphaLossLayer<Dtype>::SetTop(Dtype sum, int valid,
                                   const vector<Blob<Dtype>*>& top) {
  normalizer_ = this->get_normalizer(this->normalization_, valid);
  top[0]->mutable_cpu_data()[0] = sum / normalizer_;
  if (top.size() > 1) top[1]->ShareData(this->prob_);
}

template <typename Dtype>
void AlphaLossLayer<Dtype>::Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                                        const vector<Blob<Dtype>*>& top) {
  this->softmax_layer_->Forward(this->softmax_bottom_vec_,
                                this->softmax_top_vec_);
  const auto batch = this->batch(bottom[1]->cpu_data(), this->prob_.cpu_data(),
                                 shares_.mutable_cpu_data());
  Dtype sum = 0;
  int valid = 0;
  for (int i = 0; i < batch.labels; ++i) {
    if (!batch.IsIgnored(i)) {
      CheckLabel(batch.label[i], batch.classes, i / batch.places,
                 i % batch.places, batch.places);
      ++valid;
    }
    sum += batch.Forward(i);
  }
  SetTop(sum, valid, top);
}

template <typename Dtype>
void AlphaLossLayer<Dtype>::Backward_cpu(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  CHECK(!propagate_down[1]) << "a label has no gradient";
  if (!propagate_down[0]) return;
  const auto batch = this->batch(bottom[1]->cpu_data(), this->prob_.cpu_data(),
                                 shares_.mutable_cpu_data());
  Dtype* const diff = bottom[0]->mutable_cpu_diff();
  const Dtype scale = top[0]->cpu_diff()[0] / normalizer_;
  for (int i = 0; i < batch.labels; ++i) batch.Backward(i, scale, diff);
}

#ifdef CPU_ONLY
// As STUB_GPU, but without names that nobody uses.
template <typename Dtype>
void AlphaLossLayer<Dtype>::Forward_gpu(const vector<Blob<Dtype>*>&,
                                        const vector<Blob<Dtype>*>&) {
  NO_GPU;
}
template <typename Dtype>
void AlphaLossLayer<Dtype>::Backward_gpu(const vector<Blob<Dtype>*>&,
                                         const vector<bool>&,
                                         const vector<Blob<Dtype>*>&) {
  NO_GPU;
}
#endif

INSTANTIATE_CLASS(AlphaLossLayer);

// The type is the stock one, so that all that knows SoftmaxWithLoss knows this.
template <typename Dtype>
shared_ptr<Layer<Dtype>> GetSoftmaxWithLossLayer(const LayerParameter& param) {
  if (param.loss_param().has_alpha()) {
    return shared_ptr<Layer<Dtype>>(new AlphaLossLayer<Dtype>(param));
  }
  return shared_ptr<Layer<Dtype>>(new SoftmaxWithLossLayer<Dtype>(param));
}
REGISTER_LAYER_CREATOR(SoftmaxWithLoss, GetSoftmaxWithLossLayer);

}  // namespace caffe
