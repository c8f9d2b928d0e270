// Concat, with all threads.

#include "caffe/layers/concat_layer.hpp"

#include <algorithm>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/team.hpp"

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

INSTANTIATE_BOTH(ConcatLayer, float);
INSTANTIATE_BOTH(ConcatLayer, double);

}  // namespace caffe
