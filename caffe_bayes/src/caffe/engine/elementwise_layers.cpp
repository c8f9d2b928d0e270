// The members of Eltwise, Split and the activations that call the engine. All
// of them divide arrays into portions.

#include <algorithm>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/instantiate.hpp"
#include "caffe/engine/kernels.hpp"
#include "caffe/engine/rows.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layers/eltwise_layer.hpp"
#include "caffe/layers/elu_layer.hpp"
#include "caffe/layers/prelu_layer.hpp"
#include "caffe/layers/relu_layer.hpp"
#include "caffe/layers/sigmoid_layer.hpp"
#include "caffe/layers/split_layer.hpp"
#include "caffe/layers/swish_layer.hpp"
#include "caffe/layers/tanh_layer.hpp"

namespace caffe {

namespace {

// ---- Activations ------------------------------------------------------------

template <typename T>
using ActivationOf = engine::Activation<T> engine::Kernels<T>::*;

template <typename T>
void Activate(ActivationOf<T> function, T parameter, const Blob<T>& bottom,
              Blob<T>* top) {
  const engine::Activation<T>& f = engine::BestKernels<T>().*function;
  const T* x = bottom.cpu_data();
  T* y = top->mutable_cpu_data();
  engine::ParallelPortions(bottom.count(), [&](int, int first, int count) {
    f.value(count, parameter, x + first, y + first);
  });
}

template <typename T>
void ActivationGradient(ActivationOf<T> function, T parameter,
                        const Blob<T>& top, Blob<T>* bottom) {
  const engine::Activation<T>& f = engine::BestKernels<T>().*function;
  const T *x = bottom->cpu_data(), *y = top.cpu_data(), *dy = top.cpu_diff();
  T* dx = bottom->mutable_cpu_diff();
  engine::ParallelPortions(top.count(), [&](int, int first, int count) {
    f.gradient(count, parameter, x + first, y + first, dy + first, dx + first);
  });
}

}  // namespace

// What a layer with one activation needs: the engine field of its parameters
// (or 0), the activation and the activation's parameter.
#define ACTIVATION_LAYER(Layer, engine_field, function, parameter)            \
  template <typename Dtype>                                                   \
  bool Layer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,      \
                                     const vector<Blob<Dtype>*>& top) {       \
    if (!engine::IsChosen(engine_field)) return false;                        \
    Activate<Dtype>(&engine::Kernels<Dtype>::function, parameter, *bottom[0], \
                    top[0]);                                                  \
    return true;                                                              \
  }                                                                           \
  template <typename Dtype>                                                   \
  bool Layer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,        \
                                      const vector<bool>& propagate_down,     \
                                      const vector<Blob<Dtype>*>& bottom) {   \
    if (!engine::IsChosen(engine_field)) return false;                        \
    if (propagate_down[0]) {                                                  \
      ActivationGradient<Dtype>(&engine::Kernels<Dtype>::function, parameter, \
                                *top[0], bottom[0]);                          \
    }                                                                         \
    return true;                                                              \
  }                                                                           \
  INSTANTIATE_BOTH(Layer, float);                                             \
  INSTANTIATE_BOTH(Layer, double)

ACTIVATION_LAYER(ReLULayer, this->layer_param_.relu_param().engine(), relu,
                 this->layer_param_.relu_param().negative_slope());
ACTIVATION_LAYER(SigmoidLayer, this->layer_param_.sigmoid_param().engine(),
                 sigmoid, 1);
ACTIVATION_LAYER(TanHLayer, this->layer_param_.tanh_param().engine(), tanh, 1);
ACTIVATION_LAYER(ELULayer, 0, elu, this->layer_param_.elu_param().alpha());
#undef ACTIVATION_LAYER

// ---- Swish ------------------------------------------------------------------
// y = x sigmoid(beta x). The sigmoid is kept for Backward.

template <typename Dtype>
bool SwishLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                        const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  const Dtype beta = this->layer_param_.swish_param().beta();
  const Dtype* x = bottom[0]->cpu_data();
  Dtype* sigmoid = sigmoid_output_->mutable_cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  engine::ParallelPortions(bottom[0]->count(), [&](int, int first, int count) {
    engine::BestKernels<Dtype>().sigmoid.value(count, beta, x + first,
                                               sigmoid + first);
    for (int i = first; i < first + count; ++i) y[i] = x[i] * sigmoid[i];
  });
  return true;
}

template <typename Dtype>
bool SwishLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  if (!propagate_down[0]) return true;
  const Dtype beta = this->layer_param_.swish_param().beta();
  const Dtype* sigmoid = sigmoid_output_->cpu_data();
  const Dtype *y = top[0]->cpu_data(), *dy = top[0]->cpu_diff();
  Dtype* dx = bottom[0]->mutable_cpu_diff();
  engine::ParallelPortions(top[0]->count(), [&](int, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      dx[i] = dy[i] * (beta * y[i] + sigmoid[i] * (1 - beta * y[i]));
    }
  });
  return true;
}

// ---- PReLU ------------------------------------------------------------------
// A ReLU whose slope is learned: one for each channel, or one for all.

namespace {

template <typename T>
engine::Rows SlopeRows(const Blob<T>& blob, bool shared) {
  if (shared) return {blob.shape(0), 1, blob.count(1)};
  return {blob.shape(0), blob.shape(1), blob.count(2)};
}

}  // namespace

template <typename Dtype>
bool PReLULayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                        const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows = SlopeRows(*bottom[0], channel_shared_);
  const bool in_place = bottom[0] == top[0];
  const Dtype* x = bottom[0]->cpu_data();
  const Dtype* slope = this->blobs_[0]->cpu_data();
  Dtype* y = top[0]->mutable_cpu_data();
  // For Backward.
  Dtype* kept = in_place ? bottom_memory_.mutable_cpu_data() : nullptr;
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const ptrdiff_t first = row * rows.length;
    if (in_place) {
      std::copy(x + first, x + first + count * rows.length, kept + first);
    }
    for (int r = 0; r < count; ++r) {
      const ptrdiff_t at = first + r * rows.length;
      engine::BestKernels<Dtype>().relu.value(rows.length, slope[channel + r],
                                              x + at, y + at);
    }
  });
  return true;
}

template <typename Dtype>
bool PReLULayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  const engine::Rows rows = SlopeRows(*bottom[0], channel_shared_);
  const bool wants_slope = this->param_propagate_down_[0];
  const Dtype* x =
      (bottom[0] == top[0] ? bottom_memory_ : *bottom[0]).cpu_data();
  const Dtype* dy = top[0]->cpu_diff();
  const Dtype* slope = this->blobs_[0]->cpu_data();
  Dtype* dx = propagate_down[0] ? bottom[0]->mutable_cpu_diff() : nullptr;
  const engine::Scratch<Dtype> sum(wants_slope ? rows.count() : 0);
  // dx may be where dy is: the sums come first.
  engine::ParallelRows(rows, [&](ptrdiff_t row, int channel, int count) {
    const engine::Kernels<Dtype>& kernels = engine::BestKernels<Dtype>();
    for (int r = 0; r < count; ++r) {
      const ptrdiff_t at = (row + r) * rows.length;
      if (wants_slope) {
        sum[row + r] = kernels.slope_gradient(rows.length, x + at, dy + at);
      }
      if (dx) {
        kernels.relu.gradient(rows.length, slope[channel + r], x + at, x + at,
                              dy + at, dx + at);
      }
    }
  });
  if (wants_slope) {
    engine::SumOverImages<Dtype>(rows, sum, true,
                                 this->blobs_[0]->mutable_cpu_diff());
  }
  return true;
}

// ---- Eltwise and Split ------------------------------------------------------

namespace {

// to = the sum of factor[i] from[i] over two arrays or more.
template <typename T>
void WeightedSum(int n, const vector<const T*>& from, const vector<T>& factor,
                 T* to) {
  engine::ParallelPortions(n, [&](int, int first, int count) {
    const T *a = from[0] + first, *b = from[1] + first;
    const T of_a = factor[0], of_b = factor[1];
    T* out = to + first;
    for (int j = 0; j < count; ++j) out[j] = of_a * a[j] + of_b * b[j];
    for (int i = 2; i < from.size(); ++i) {
      const T *x = from[i] + first, of_x = factor[i];
      for (int j = 0; j < count; ++j) out[j] += of_x * x[j];
    }
  });
}

template <typename T>
void Product(int n, const vector<const T*>& from, T* to) {
  engine::ParallelPortions(n, [&](int, int first, int count) {
    const T *a = from[0] + first, *b = from[1] + first;
    T* out = to + first;
    for (int j = 0; j < count; ++j) out[j] = a[j] * b[j];
    for (int i = 2; i < from.size(); ++i) {
      const T* x = from[i] + first;
      for (int j = 0; j < count; ++j) out[j] *= x[j];
    }
  });
}

// The largest, and in which array it is. If the first two are the same, it is
// the second, else the first of those that are the same; which NaN is not.
template <typename T>
void Maximum(int n, const vector<const T*>& from, T* to, int* where) {
  engine::ParallelPortions(n, [&](int, int first, int count) {
    const T *a = from[0] + first, *b = from[1] + first;
    T* out = to + first;
    int* which = where + first;
    for (int j = 0; j < count; ++j) {
      which[j] = a[j] > b[j] ? 0 : 1;
      out[j] = a[j] > b[j] ? a[j] : b[j];
    }
    for (int i = 2; i < from.size(); ++i) {
      const T* x = from[i] + first;
      for (int j = 0; j < count; ++j) {
        which[j] = x[j] > out[j] ? i : which[j];
        out[j] = x[j] > out[j] ? x[j] : out[j];
      }
    }
  });
}

}  // namespace

template <typename Dtype>
bool EltwiseLayer<Dtype>::ForwardByEngine(const vector<Blob<Dtype>*>& bottom,
                                          const vector<Blob<Dtype>*>& top) {
  if (!engine::IsChosen(0)) return false;
  vector<const Dtype*> x;
  for (const Blob<Dtype>* blob : bottom) x.push_back(blob->cpu_data());
  const int count = top[0]->count();
  Dtype* y = top[0]->mutable_cpu_data();
  switch (op_) {
    case EltwiseParameter_EltwiseOp_SUM:
      WeightedSum(count, x, coeffs_, y);
      return true;
    case EltwiseParameter_EltwiseOp_PROD:
      Product(count, x, y);
      return true;
    case EltwiseParameter_EltwiseOp_MAX:
      Maximum(count, x, y, max_idx_.mutable_cpu_data());
      return true;
  }
  return false;
}

template <typename Dtype>
bool EltwiseLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                           const vector<bool>& propagate_down,
                                           const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0)) return false;
  const int bottoms = bottom.size();
  vector<const Dtype*> x;
  vector<Dtype*> dx;
  for (int i = 0; i < bottoms; ++i) {
    x.push_back(bottom[i]->cpu_data());
    dx.push_back(propagate_down[i] ? bottom[i]->mutable_cpu_diff() : nullptr);
  }
  const Dtype *y = top[0]->cpu_data(), *dy = top[0]->cpu_diff();
  const int* where =
      op_ == EltwiseParameter_EltwiseOp_MAX ? max_idx_.cpu_data() : nullptr;
  engine::ParallelPortions(top[0]->count(), [&](int, int first, int count) {
    const int end = first + count;
    for (int i = 0; i < bottoms; ++i) {
      Dtype* to = dx[i];
      if (!to) continue;
      if (op_ == EltwiseParameter_EltwiseOp_SUM) {
        const Dtype factor = coeffs_[i];
        for (int j = first; j < end; ++j) to[j] = factor * dy[j];
      } else if (op_ == EltwiseParameter_EltwiseOp_MAX) {
        for (int j = first; j < end; ++j) to[j] = where[j] == i ? dy[j] : 0;
      } else if (stable_prod_grad_) {
        std::copy(dy + first, dy + end, to + first);
        for (int k = 0; k < bottoms; ++k) {
          const Dtype* other = x[k];
          if (k == i) continue;
          for (int j = first; j < end; ++j) to[j] *= other[j];
        }
      } else {
        const Dtype* own = x[i];
        for (int j = first; j < end; ++j) to[j] = y[j] / own[j] * dy[j];
      }
    }
  });
  return true;
}

template <typename Dtype>
bool SplitLayer<Dtype>::BackwardByEngine(const vector<Blob<Dtype>*>& top,
                                         const vector<bool>& propagate_down,
                                         const vector<Blob<Dtype>*>& bottom) {
  if (!engine::IsChosen(0) || !propagate_down[0] || top.size() < 2) {
    return false;
  }
  vector<const Dtype*> dy;
  for (const Blob<Dtype>* blob : top) dy.push_back(blob->cpu_diff());
  WeightedSum(count_, dy, vector<Dtype>(dy.size(), Dtype(1)),
              bottom[0]->mutable_cpu_diff());
  return true;
}

#define INSTANTIATE_ALL(T)           \
  INSTANTIATE_BOTH(SwishLayer, T);   \
  INSTANTIATE_BOTH(PReLULayer, T);   \
  INSTANTIATE_BOTH(EltwiseLayer, T); \
  INSTANTIATE_BACKWARD(SplitLayer, T)
INSTANTIATE_ALL(float);
INSTANTIATE_ALL(double);

}  // namespace caffe
