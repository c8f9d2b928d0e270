#include "caffe/layers/moments_layer.hpp"

#include <limits>
#include <vector>

#include "caffe/engine/kernels.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layer_factory.hpp"

namespace caffe {

template <typename Dtype>
void MomentsLayer<Dtype>::LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                                     const vector<Blob<Dtype>*>& top) {
  if (of_mean().empty()) return;
  CHECK(of_mean() != "Pooling" || this->layer_param_.pooling_param().pool() ==
                                      PoolingParameter_PoolMethod_MAX)
      << "pooling_param.pool must be MAX: other pooling needs no such layer";
  LayerParameter param = this->layer_param_;
  param.set_type(of_mean());
  mean_layer_ = LayerRegistry<Dtype>::CreateLayer(param);
  mean_layer_->SetUp({bottom[0]}, tops_of_mean(top));
}

template <typename Dtype>
void MomentsLayer<Dtype>::Reshape(const vector<Blob<Dtype>*>& bottom,
                                  const vector<Blob<Dtype>*>& top) {
  CHECK(bottom[0]->shape() == bottom[1]->shape())
      << "has means of shape " << bottom[0]->shape_string()
      << " and variances of shape " << bottom[1]->shape_string()
      << "; they must be equal";
  if (mean_layer_) {
    mean_layer_->Reshape({bottom[0]}, tops_of_mean(top));
  } else {
    top[0]->ReshapeLike(*bottom[0]);
  }
  top[1]->ReshapeLike(*top[0]);
}

template <typename Dtype>
vector<Blob<Dtype>*> MomentsLayer<Dtype>::tops_of_mean(
    const vector<Blob<Dtype>*>& top) {
  vector<Blob<Dtype>*> tops = more_tops();
  tops.insert(tops.begin(), top[0]);
  return tops;
}

template <typename Dtype>
void MomentsLayer<Dtype>::ForwardMean(const vector<Blob<Dtype>*>& bottom,
                                      const vector<Blob<Dtype>*>& top) {
  mean_layer_->Forward({bottom[0]}, tops_of_mean(top));
}

template <typename Dtype>
void ReLUMomentsLayer<Dtype>::Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                                          const vector<Blob<Dtype>*>& top) {
  const Dtype slope = this->layer_param_.relu_param().negative_slope();
  const Dtype *m = bottom[0]->cpu_data(), *v = bottom[1]->cpu_data();
  Dtype* mean = top[0]->mutable_cpu_data();
  Dtype* variance = top[1]->mutable_cpu_data();
  engine::ParallelPortions(bottom[0]->count(), [&](int, int first, int count) {
    engine::BestKernels<Dtype>().relu_moments(
        count, slope, m + first, v + first, mean + first, variance + first);
  });
}

template <typename Dtype>
void PoolingMomentsLayer<Dtype>::Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                                             const vector<Blob<Dtype>*>& top) {
  this->ForwardMean(bottom, top);
  const Dtype *v = bottom[1]->cpu_data(), *mask = mask_.cpu_data();
  Dtype* variance = top[1]->mutable_cpu_data();
  const int planes = top[0]->count(0, 2);
  const int taken = bottom[0]->count(2), given = top[0]->count(2);
  engine::ParallelGroups(planes, given, [&](int first, int count) {
    for (int plane = first; plane < first + count; ++plane) {
      const Dtype* from = v + static_cast<ptrdiff_t>(plane) * taken;
      for (int i = plane * given; i < (plane + 1) * given; ++i) {
        // Among means that are no numbers, none is the largest.
        const int place = static_cast<int>(mask[i]);
        const bool is_there = place >= 0 && place < taken;
        variance[i] =
            is_there ? from[place] : std::numeric_limits<Dtype>::quiet_NaN();
      }
    }
  });
}

template <typename Dtype>
void LRNMomentsLayer<Dtype>::Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                                         const vector<Blob<Dtype>*>& top) {
  this->ForwardMean(bottom, top);
  const Dtype *m = bottom[0]->cpu_data(), *v = bottom[1]->cpu_data();
  const Dtype* mean = top[0]->cpu_data();
  Dtype* variance = top[1]->mutable_cpu_data();
  engine::ParallelPortions(bottom[0]->count(), [&](int, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      const Dtype factor = m[i] == 0 ? Dtype(1) : mean[i] / m[i];
      variance[i] = v[i] * factor * factor;
    }
  });
}

INSTANTIATE_CLASS(MomentsLayer);
INSTANTIATE_CLASS(ReLUMomentsLayer);
INSTANTIATE_CLASS(PoolingMomentsLayer);
INSTANTIATE_CLASS(LRNMomentsLayer);
REGISTER_LAYER_CLASS(ReLUMoments);
REGISTER_LAYER_CLASS(PoolingMoments);
REGISTER_LAYER_CLASS(LRNMoments);

}  // namespace caffe
