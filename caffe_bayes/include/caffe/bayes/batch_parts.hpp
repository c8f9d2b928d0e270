#ifndef CAFFE_BAYES_BATCH_PARTS_HPP_
#define CAFFE_BAYES_BATCH_PARTS_HPP_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

/// Makes `part` a view of the images [first, first + n) of `whole`.
template <typename Dtype>
void ViewPart(Blob<Dtype>* whole, int first, int n, Blob<Dtype>* part) {
  std::vector<int> shape = whole->shape();
  shape[0] = n;
  part->Reshape(shape);
  const int offset = first * whole->count(1);
  if (Caffe::mode() == Caffe::GPU) {
    part->data()->set_gpu_data(whole->mutable_gpu_data() + offset);
    part->diff()->set_gpu_data(whole->mutable_gpu_diff() + offset);
  } else {
    part->data()->set_cpu_data(whole->mutable_cpu_data() + offset);
    part->diff()->set_cpu_data(whole->mutable_cpu_diff() + offset);
  }
}

/// Divides the images of a batch into parts, as evenly as can be, and calls
/// function(part, bottoms, tops) for each, with views of its images. There are
/// fewer parts where there are fewer images.
template <typename Dtype, typename Function>
void ForEachPart(int parts, const std::vector<Blob<Dtype>*>& bottom,
                 const std::vector<Blob<Dtype>*>& top, Function function) {
  typedef std::vector<Blob<Dtype>*> Blobs;
  const int images = bottom[0]->shape(0);
  parts = std::min(parts, images);
  std::vector<Blob<Dtype> > views(bottom.size() + top.size());
  for (int part = 0; part < parts; ++part) {
    const int first = static_cast<int64_t>(part) * images / parts;
    const int n = static_cast<int64_t>(part + 1) * images / parts - first;
    Blobs bottom_part, top_part;
    for (int i = 0; i < views.size(); ++i) {
      const bool is_bottom = i < bottom.size();
      ViewPart(is_bottom ? bottom[i] : top[i - bottom.size()], first, n,
               &views[i]);
      (is_bottom ? bottom_part : top_part).push_back(&views[i]);
    }
    function(part, bottom_part, top_part);
  }
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_BATCH_PARTS_HPP_
