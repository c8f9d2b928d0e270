// The members of BatchNorm, Scale and Bias that call the engine. All of them
// have one number for each channel: what they divide is rows (see rows.hpp).

#include <algorithm>
#include <cmath>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/rows.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/layers/batch_norm_layer.hpp"
#include "caffe/layers/bias_layer.hpp"
#include "caffe/layers/scale_layer.hpp"

namespace caffe {

namespace {

// The mean and the variance of each channel. Those of each row are exact
// enough however far the numbers are from 0, and all rows are as long.
template <typename T>
void MeansAndVariances(const engine::Rows& rows, const T* x, T* mean,
                       T* variance) {
  const engine::Scratch<T> row_mean(rows.count()), row_variance(rows.count());
  engine::ParallelRows(rows, [&](ptrdiff_t row, int, int count) {
    engine::BestKernels<T>().moments(count, rows.length, x + row * rows.length,
                                     row_mean + row, row_variance + row);
  });
  engine::SumOverImages<T>(rows, row_mean, false, mean);
  for (int c = 0; c < rows.channels; ++c) mean[c] /= rows.images;
  for (ptrdiff_t image = 0; image < rows.images; ++image) {
    const T* own = row_mean + image * rows.channels;
    T* to = row_variance + image * rows.channels;
    for (int c = 0; c < rows.channels; ++c) {
      to[c] += (own[c] - mean[c]) * (own[c] - mean[c]);
    }
  }
  engine::SumOverImages<T>(rows, row_variance, false, variance);
  for (int c = 0; c < rows.channels; ++c) variance[c] /= rows.images;
}

// The rows of a blob that has one parameter for each of `channels`. A single
// parameter goes with an image each.
template <typename T>
engine::Rows RowsOf(const Blob<T>& blob, int outer, int channels, int inner) {
  if (outer == 1 && channels == 1 && blob.num_axes() > 0) {
    return {blob.shape(0), 1, blob.count(1)};
  }
  return {outer, channels, inner};
}

}  // namespace

// ---- BatchNorm --------------------------------------------------------------

template <typename Dtype>
bool BatchNormLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                            const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows = {bottom[0]->shape(0), channels_,
                             bottom[0]->count(2)};
  const Dtype* x = bottom[0]->cpu_data();
  Dtype* mean = mean_.mutable_cpu_data();
  // Backward finds the standard deviation here.
  Dtype* variance = variance_.mutable_cpu_data();
  if (use_global_stats_) {
    const Dtype weight = this->blobs_[2]->cpu_data()[0];
    const Dtype scale = weight == 0 ? 0 : 1 / weight;
    for (int c = 0; c < channels_; ++c) {
      mean[c] = scale * this->blobs_[0]->cpu_data()[c];
      variance[c] = scale * this->blobs_[1]->cpu_data()[c];
    }
  } else {
    MeansAndVariances(rows, x, mean, variance);
    Dtype* means = this->blobs_[0]->mutable_cpu_data();
    Dtype* variances = this->blobs_[1]->mutable_cpu_data();
    Dtype* weight = this->blobs_[2]->mutable_cpu_data();
    const int numbers = rows.images * rows.length;
    // What is remembered is the unbiased estimate.
    const Dtype unbiased = numbers > 1 ? Dtype(numbers) / (numbers - 1) : 1;
    weight[0] = moving_average_fraction_ * weight[0] + 1;
    for (int c = 0; c < channels_; ++c) {
      means[c] = moving_average_fraction_ * means[c] + mean[c];
      variances[c] =
          moving_average_fraction_ * variances[c] + unbiased * variance[c];
    }
  }
  const engine::Scratch<Dtype> factor(channels_);
  for (int c = 0; c < channels_; ++c) {
    variance[c] = std::sqrt(variance[c] + eps_);
    factor[c] = 1 / variance[c];
  }
  Dtype* y = top[0]->mutable_cpu_data();
  // Layers that compute in place may overwrite y before Backward needs it.
  Dtype* kept = use_global_stats_ ? y : x_norm_.mutable_cpu_data();
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const ptrdiff_t first = row * rows.length,
                    end = first + count * rows.length;
    engine::BestKernels<Dtype>().affine(
        count, rows.length, {mean + channel, factor + channel, nullptr},
        x + first, kept + first);
    if (kept != y) std::copy(kept + first, kept + end, y + first);
  });
  return true;
}

// With y = (x - mean(x)) / deviation(x), and means over a channel,
//   dx = (dy - mean(dy) - mean(dy y) y) / deviation(x).
template <typename Dtype>
bool BatchNormLayer<Dtype>::BackwardByEngine(
    const vector<Blob<Dtype>*>& top, const vector<bool>& propagate_down,
    const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  if (!propagate_down[0]) return true;
  const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
  const engine::Rows rows = {bottom[0]->shape(0), channels_,
                             bottom[0]->count(2)};
  const Dtype* dy = top[0]->cpu_diff();
  Dtype* dx = bottom[0]->mutable_cpu_diff();
  const engine::Scratch<Dtype> factor(channels_);
  for (int c = 0; c < channels_; ++c) factor[c] = 1 / variance_.cpu_data()[c];
  if (use_global_stats_) {
    engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
      kernels.affine(count, rows.length, {nullptr, factor + channel, nullptr},
                     dy + row * rows.length, dx + row * rows.length);
    });
    return true;
  }
  const Dtype* y = x_norm_.cpu_data();
  const engine::Scratch<Dtype> row_sum(rows.count()), row_product(rows.count());
  engine::ParallelRows(rows, [&](ptrdiff_t row, int, int count) {
    kernels.sums_and_products(count, rows.length, dy + row * rows.length,
                              y + row * rows.length, row_sum + row,
                              row_product + row);
  });
  const engine::Scratch<Dtype> mean(channels_), slope(channels_);
  engine::SumOverImages<Dtype>(rows, row_sum, false, mean);
  engine::SumOverImages<Dtype>(rows, row_product, false, slope);
  for (int c = 0; c < channels_; ++c) {
    mean[c] /= rows.images * rows.length;
    slope[c] /= rows.images * rows.length;
  }
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const ptrdiff_t first = row * rows.length;
    kernels.normalised_gradient(count, rows.length, mean + channel,
                                slope + channel, factor + channel, y + first,
                                dy + first, dx + first);
  });
  return true;
}

// ---- Scale ------------------------------------------------------------------

template <typename Dtype>
bool ScaleLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                        const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows =
      RowsOf(*bottom[0], outer_dim_, scale_dim_, inner_dim_);
  const bool in_place = bottom[0] == top[0];
  const Dtype* x = bottom[0]->cpu_data();
  const Dtype* scale =
      (bottom.size() > 1 ? bottom[1] : this->blobs_[0].get())->cpu_data();
  const Dtype* bias =
      bias_layer_ ? bias_layer_->blobs()[0]->cpu_data() : nullptr;
  Dtype* y = top[0]->mutable_cpu_data();
  // For Backward.
  Dtype* kept = in_place ? temp_.mutable_cpu_data() : nullptr;
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const ptrdiff_t first = row * rows.length,
                    end = first + count * rows.length;
    if (in_place) std::copy(x + first, x + end, kept + first);
    engine::BestKernels<Dtype>().affine(
        count, rows.length,
        {nullptr, scale + channel, bias ? bias + channel : nullptr}, x + first,
        y + first);
  });
  return true;
}

template <typename Dtype>
bool ScaleLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows =
      RowsOf(*bottom[0], outer_dim_, scale_dim_, inner_dim_);
  const bool is_parameter = bottom.size() == 1;
  Blob<Dtype>* scale = is_parameter ? this->blobs_[0].get() : bottom[1];
  const bool wants_scale =
      is_parameter ? this->param_propagate_down_[0] : propagate_down[1];
  const bool wants_bias = bias_layer_ && this->param_propagate_down_.back();
  const bool wants_sums = wants_scale || wants_bias;
  const Dtype* x = (bottom[0] == top[0] ? &temp_ : bottom[0])->cpu_data();
  const Dtype* dy = top[0]->cpu_diff();
  const Dtype* factor = scale->cpu_data();
  Dtype* dx = propagate_down[0] ? bottom[0]->mutable_cpu_diff() : nullptr;
  const engine::Scratch<Dtype> sum(wants_sums ? rows.count() : 0);
  const engine::Scratch<Dtype> product(wants_sums ? rows.count() : 0);
  // dx may be where dy is: the sums come first.
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
    const ptrdiff_t first = row * rows.length;
    if (wants_sums) {
      kernels.sums_and_products(count, rows.length, dy + first, x + first,
                                sum + row, product + row);
    }
    if (dx) {
      kernels.affine(count, rows.length, {nullptr, factor + channel, nullptr},
                     dy + first, dx + first);
    }
  });
  if (wants_scale) {
    engine::SumOverImages<Dtype>(rows, product, is_parameter,
                                 scale->mutable_cpu_diff());
  }
  if (wants_bias) {
    engine::SumOverImages<Dtype>(rows, sum, true,
                                 bias_layer_->blobs()[0]->mutable_cpu_diff());
  }
  return true;
}

// ---- Bias -------------------------------------------------------------------

template <typename Dtype>
bool BiasLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                       const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows =
      RowsOf(*bottom[0], outer_dim_, bias_dim_, inner_dim_);
  const Dtype* x = bottom[0]->cpu_data();
  const Dtype* bias =
      (bottom.size() > 1 ? bottom[1] : this->blobs_[0].get())->cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    engine::BestKernels<Dtype>().affine(
        count, rows.length, {nullptr, nullptr, bias + channel},
        x + row * rows.length, y + row * rows.length);
  });
  return true;
}

template <typename Dtype>
bool BiasLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                        const vector<bool>& propagate_down,
                                        const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows =
      RowsOf(*bottom[0], outer_dim_, bias_dim_, inner_dim_);
  const bool is_parameter = bottom.size() == 1;
  const bool wants_bias =
      is_parameter ? this->param_propagate_down_[0] : propagate_down[1];
  const bool copies = propagate_down[0] && bottom[0] != top[0];
  const Dtype* dy = top[0]->cpu_diff();
  Dtype* dx = copies ? bottom[0]->mutable_cpu_diff() : nullptr;
  const engine::Scratch<Dtype> sum(wants_bias ? rows.count() : 0);
  engine::ParallelRows(rows, [&](ptrdiff_t row, int, int count) {
    for (ptrdiff_t r = row; r < row + count; ++r) {
      const Dtype* from = dy + r * rows.length;
      if (wants_bias)
        sum[r] = engine::BestKernels<Dtype>().sum(rows.length, from);
      if (copies) std::copy(from, from + rows.length, dx + r * rows.length);
    }
  });
  if (wants_bias) {
    Blob<Dtype>* bias = is_parameter ? this->blobs_[0].get() : bottom[1];
    engine::SumOverImages<Dtype>(rows, sum, is_parameter,
                                 bias->mutable_cpu_diff());
  }
  return true;
}

#define INSTANTIATE_ALL(T)             \
  INSTANTIATE_BOTH(BatchNormLayer, T); \
  INSTANTIATE_BOTH(ScaleLayer, T);     \
  INSTANTIATE_BOTH(BiasLayer, T)
INSTANTIATE_ALL(float);
INSTANTIATE_ALL(double);

}  // namespace caffe
