// Layers that copy and add up blobs, with all threads: Concat, and the gradient
// of Split, whose outputs share the memory of its input.

#include <algorithm>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layers/concat_layer.hpp"
#include "caffe/layers/split_layer.hpp"

namespace caffe {

namespace {

// Copies rows of n numbers, which are so far apart in `from` and in `to`.
template <typename T>
void CopyRows(int rows, int n, const T* from, ptrdiff_t from_row, T* to,
              ptrdiff_t to_row) {
  // A row in several portions, or several rows at once.
  const int portions = std::max(1, engine::Portions(n));
  const int size = std::min(n, engine::kPortion);
  engine::ParallelGroups(rows * portions, size, [&](int first, int count) {
    for (int i = first; i < first + count; ++i) {
      const ptrdiff_t row = i / portions, at = i % portions * size;
      const T* begin = from + row * from_row + at;
      std::copy(begin, begin + std::min<ptrdiff_t>(size, n - at),
                to + row * to_row + at);
    }
  });
}

}  // namespace

template <typename Dtype>
bool ConcatLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                         const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0) || bottom.size() == 1) return false;
  const int top_row = top[0]->shape(concat_axis_) * concat_input_size_;
  Dtype* to = top[0]->mutable_cpu_data();
  for (const Blob<Dtype>* blob : bottom) {
    const int row = blob->shape(concat_axis_) * concat_input_size_;
    CopyRows(num_concats_, row, blob->cpu_data(), row, to, top_row);
    to += row;
  }
  return true;
}

template <typename Dtype>
bool ConcatLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                          const vector<bool>& propagate_down,
                                          const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0) || bottom.size() == 1) return false;
  const int top_row = top[0]->shape(concat_axis_) * concat_input_size_;
  const Dtype* from = top[0]->cpu_diff();
  for (int i = 0; i < bottom.size(); ++i) {
    const int row = bottom[i]->shape(concat_axis_) * concat_input_size_;
    if (propagate_down[i]) {
      CopyRows(num_concats_, row, from, top_row, bottom[i]->mutable_cpu_diff(),
               row);
    }
    from += row;
  }
  return true;
}

template <typename Dtype>
bool SplitLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0) || !propagate_down[0]) return false;
  vector<const Dtype*> from;
  for (const Blob<Dtype>* blob : top) from.push_back(blob->cpu_diff());
  Dtype* to = bottom[0]->mutable_cpu_diff();
  engine::ParallelPortions(count_, [&](int, int first, int count) {
    std::copy(from[0] + first, from[0] + first + count, to + first);
    for (int i = 1; i < from.size(); ++i) {
      const Dtype* added = from[i];
      for (int j = first; j < first + count; ++j) to[j] += added[j];
    }
  });
  return true;
}

#define INSTANTIATE_COPIES(T)                                          \
  INSTANTIATE_BOTH(ConcatLayer, T);                                    \
  template bool SplitLayer<T>::BackwardByEngine(                       \
      const vector<Blob<T>*>& top, const vector<bool>& propagate_down, \
      const vector<Blob<T>*>& bottom)
INSTANTIATE_COPIES(float);
INSTANTIATE_COPIES(double);

}  // namespace caffe
