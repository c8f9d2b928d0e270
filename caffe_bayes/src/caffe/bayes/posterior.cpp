#include "caffe/bayes/posterior.hpp"

#include <vector>

#include "caffe/bayes/gpu.hpp"
#include "caffe/engine/machine.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {
namespace bayes {

namespace {

// The sums of AddGradients.
struct TauSums {
  double by_tau = 0, sum_sq = 0;
};

#define ENGINE_LOOPS "caffe/bayes/posterior.inl"
#include "caffe/engine/targets.inl"

}  // namespace

template <typename Dtype>
Posterior<Dtype>::Posterior(const shared_ptr<Blob<Dtype> >& m,
                            const shared_ptr<Blob<Dtype> >& delta,
                            const shared_ptr<Blob<Dtype> >& epsilon,
                            Dtype tau_min)
    : m_(m),
      delta_(delta),
      epsilon_(epsilon),
      delta_min_(SoftplusInverse(tau_min)) {
  CHECK_EQ(delta->count(), 1) << "delta must be one number";
  CHECK(m->shape() == epsilon->shape())
      << "epsilon has shape " << epsilon->shape_string() << ", but m has "
      << m->shape_string();
}

template <typename Dtype>
void Posterior<Dtype>::SetPrior(Dtype mean, Dtype std) {
  CHECK_GT(std, 0) << "the standard deviation of a prior must be positive";
  prior_mean_ = mean;
  prior_std_ = std;
  prior_means_.reset();
  prior_stds_.reset();
}

template <typename Dtype>
void Posterior<Dtype>::SetPrior(const shared_ptr<Blob<Dtype> >& mean,
                                const shared_ptr<Blob<Dtype> >& std) {
  CHECK(mean->shape() == m_->shape() && std->shape() == m_->shape())
      << "a prior for each weight must have the shape of the weights, "
      << m_->shape_string() << "; the means have " << mean->shape_string()
      << ", the standard deviations " << std->shape_string();
  const Dtype* stds = std->cpu_data();
  for (int i = 0; i < std->count(); ++i) {
    CHECK_GT(stds[i], 0) << "the standard deviation of prior " << i
                         << " must be positive";
  }
  prior_means_ = mean;
  prior_stds_ = std;
}

template <typename Dtype>
Dtype Posterior<Dtype>::Tau() {
  return Softplus(RaisedDelta(delta_->cpu_data()[0], delta_min_));
}

template <typename Dtype>
void Posterior<Dtype>::RaiseDelta() {
  if (delta_->cpu_data()[0] < delta_min_) {
    delta_->mutable_cpu_data()[0] = delta_min_;
  }
}

template <typename Dtype>
void Posterior<Dtype>::Sample(const NoiseKey& key, uint64_t draw,
                              Blob<Dtype>* w, const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(WriteOnGpu({gpu::Write::kSample, w->mutable_gpu_data(),
                            epsilon_->mutable_gpu_data(), key, draw},
                           kl));
  RaiseDelta();
  const int count = m_->count();
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  Dtype* epsilon = epsilon_->mutable_cpu_data();
  Dtype* sample = w->mutable_cpu_data();
  const auto loop = ENGINE_CHOOSE(SampleLoop<Dtype>);
  engine::ParallelPortions(count, [&](int, int first, int n) {
    FillNormal(key, draw, first, n, epsilon + first);
    loop(n, tau, m + first, epsilon + first, sample + first);
  });
  AddKL(kl);
}

template <typename Dtype>
void Posterior<Dtype>::Mean(Blob<Dtype>* w, const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(WriteOnGpu(
      {gpu::Write::kMean, w->mutable_gpu_data(), epsilon_->mutable_gpu_data()},
      kl));
  RaiseDelta();
  caffe_set(m_->count(), Dtype(0), epsilon_->mutable_cpu_data());
  caffe_copy(m_->count(), m_->cpu_data(), w->mutable_cpu_data());
  AddKL(kl);
}

template <typename Dtype>
void Posterior<Dtype>::Variance(Blob<Dtype>* variance,
                                const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(
      WriteOnGpu({gpu::Write::kVariance, variance->mutable_gpu_data()}, kl));
  RaiseDelta();
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  Dtype* out = variance->mutable_cpu_data();
  const auto loop = ENGINE_CHOOSE(VarianceLoop<Dtype>);
  engine::ParallelPortions(m_->count(), [&](int, int first, int n) {
    loop(n, tau, m + first, out + first);
  });
  AddKL(kl);
}

template <typename Dtype>
void Posterior<Dtype>::AddKL(const KLTerm<Dtype>& kl) {
  if (!kl) return;
  RETURN_IF_GPU(WriteOnGpu({gpu::Write::kNothing}, kl));
  kl.sum->mutable_cpu_data()[0] += kl.scale * KL();
}

template <typename Dtype>
template <typename Function>
void Posterior<Dtype>::WithPrior(Function function) const {
  if (!prior_means_) {
    function(CommonPrior<Dtype>{prior_mean_, prior_std_});
  } else if (Caffe::mode() == Caffe::GPU) {
    function(
        OwnPrior<Dtype>{prior_means_->gpu_data(), prior_stds_->gpu_data()});
  } else {
    function(
        OwnPrior<Dtype>{prior_means_->cpu_data(), prior_stds_->cpu_data()});
  }
}

template <typename Dtype>
void Posterior<Dtype>::Backward(Blob<Dtype>* w, Dtype kl_scale, bool learn_m,
                                bool learn_delta) {
  RETURN_IF_GPU(BackwardOnGpu(
      SampleLoss<Dtype>{w->mutable_gpu_diff(), epsilon_->gpu_data()}, kl_scale,
      learn_m, learn_delta));
  BackwardFrom(SampleLoss<Dtype>{w->mutable_cpu_diff(), epsilon_->cpu_data()},
               kl_scale, learn_m, learn_delta);
}

template <typename Dtype>
void Posterior<Dtype>::BackwardVariance(Blob<Dtype>* variance, Dtype kl_scale,
                                        bool learn_m, bool learn_delta) {
  RETURN_IF_GPU(BackwardOnGpu(VarianceLoss<Dtype>{variance->mutable_gpu_diff()},
                              kl_scale, learn_m, learn_delta));
  BackwardFrom(VarianceLoss<Dtype>{variance->mutable_cpu_diff()}, kl_scale,
               learn_m, learn_delta);
}

template <typename Dtype>
template <typename Loss>
void Posterior<Dtype>::BackwardFrom(Loss loss, Dtype kl_scale, bool learn_m,
                                    bool learn_delta) {
  RaiseDelta();
  const int count = m_->count();
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  Dtype* m_diff = learn_m ? m_->mutable_cpu_diff() : nullptr;
  // Sums of the portions, added up in their order.
  std::vector<TauSums> sums(engine::Portions(count));
  WithPrior([&](auto prior) {
    typedef decltype(prior) Prior;
    const auto loop =
        learn_m
            ? kl_scale != 0
                  ? ENGINE_CHOOSE(GradientLoop<true, true, Dtype, Loss, Prior>)
                  : ENGINE_CHOOSE(GradientLoop<true, false, Dtype, Loss, Prior>)
        : kl_scale != 0
            ? ENGINE_CHOOSE(GradientLoop<false, true, Dtype, Loss, Prior>)
            : ENGINE_CHOOSE(GradientLoop<false, false, Dtype, Loss, Prior>);
    engine::ParallelPortions(count, [&](int portion, int first, int n) {
      sums[portion] =
          loop(n, tau, kl_scale, loss.From(first), prior.From(first), m + first,
               learn_m ? m_diff + first : nullptr);
    });
  });
  if (learn_delta) {
    TauSums total = {};
    for (const TauSums& sum : sums) {
      total.by_tau += sum.by_tau;
      total.sum_sq += sum.sum_sq;
    }
    delta_->mutable_cpu_diff()[0] += DeltaGradient(
        delta_->cpu_data()[0], tau, kl_scale, static_cast<Dtype>(total.by_tau),
        static_cast<Dtype>(total.sum_sq), count);
  }
}

template <typename Dtype>
Dtype Posterior<Dtype>::KL() {
  if (Caffe::mode() == Caffe::GPU) {
    Blob<Dtype> sum((vector<int>()));
    AddKL({1, &sum});
    return sum.cpu_data()[0];
  }
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  std::vector<double> sums(engine::Portions(m_->count()));
  WithPrior([&](auto prior) {
    engine::ParallelPortions(m_->count(), [&](int portion, int first, int n) {
      for (int i = first; i < first + n; ++i) {
        sums[portion] += WeightKL(m[i], tau, prior.mean(i), prior.std(i));
      }
    });
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return static_cast<Dtype>(total);
}

#ifndef CPU_ONLY

template <typename Dtype>
gpu::Delta<Dtype> Posterior<Dtype>::GpuDelta() {
  return {delta_->mutable_gpu_data(), delta_min_};
}

template <typename Dtype>
double* Posterior<Dtype>::GpuSums() {
  if (!gpu_sums_) {
    gpu_sums_.reset(
        new Blob<double>(vector<int>(1, gpu::NumSums(m_->count()))));
  }
  return gpu_sums_->mutable_gpu_data();
}

template <typename Dtype>
void Posterior<Dtype>::WriteOnGpu(const gpu::Written<Dtype>& written,
                                  const KLTerm<Dtype>& kl) {
  const int n = m_->count();
  WithPrior([&](auto prior) {
    gpu::Forward(n, GpuDelta(), m_->gpu_data(), written, prior,
                 kl ? GpuSums() : nullptr);
  });
  if (kl) gpu::AddKL(n, GpuSums(), kl.scale, kl.sum->mutable_gpu_data());
}

template <typename Dtype>
template <typename Loss>
void Posterior<Dtype>::BackwardOnGpu(Loss loss, Dtype kl_scale, bool learn_m,
                                     bool learn_delta) {
  const int n = m_->count();
  Dtype* m_diff = learn_m ? m_->mutable_gpu_diff() : nullptr;
  WithPrior([&](auto prior) {
    gpu::Backward(n, GpuDelta(), kl_scale, loss, prior, m_->gpu_data(), m_diff,
                  GpuSums());
  });
  if (learn_delta) {
    gpu::AddDeltaGradient(n, GpuDelta(), kl_scale, GpuSums(),
                          delta_->mutable_gpu_diff());
  }
}

#endif  // CPU_ONLY

template <typename Dtype>
void SampleOutput(const NoiseKey& key, uint64_t draw,
                  const Blob<Dtype>& variance, Blob<Dtype>* epsilon,
                  Blob<Dtype>* output) {
  RETURN_IF_GPU(gpu::SampleOutput(
      output->count(), key, draw, variance.gpu_data(),
      epsilon->mutable_gpu_data(), output->mutable_gpu_data()));
  const Dtype* v = variance.cpu_data();
  Dtype* e = epsilon->mutable_cpu_data();
  Dtype* y = output->mutable_cpu_data();
  const auto loop = ENGINE_CHOOSE(OutputLoop<Dtype>);
  engine::ParallelPortions(output->count(), [&](int, int first, int n) {
    FillNormal(key, draw, first, n, e + first);
    loop(n, v + first, e + first, y + first);
  });
}

template <typename Dtype>
void SampleOutputBackward(const Blob<Dtype>& output, const Blob<Dtype>& epsilon,
                          Blob<Dtype>* variance) {
  RETURN_IF_GPU(gpu::SampleOutputBackward(
      output.count(), output.gpu_diff(), epsilon.gpu_data(),
      variance->gpu_data(), variance->mutable_gpu_diff()));
  const Dtype* dy = output.cpu_diff();
  const Dtype* e = epsilon.cpu_data();
  const Dtype* v = variance->cpu_data();
  Dtype* dv = variance->mutable_cpu_diff();
  const auto loop = ENGINE_CHOOSE(OutputGradientLoop<Dtype>);
  engine::ParallelPortions(output.count(), [&](int, int first, int n) {
    loop(n, dy + first, v + first, e + first, dv + first);
  });
}

template <typename Dtype>
void Square(const Blob<Dtype>& input, Blob<Dtype>* squares) {
  RETURN_IF_GPU(caffe_gpu_mul(input.count(), input.gpu_data(), input.gpu_data(),
                              squares->mutable_gpu_data()));
  const Dtype* x = input.cpu_data();
  Dtype* y = squares->mutable_cpu_data();
  for (int i = 0; i < input.count(); ++i) y[i] = x[i] * x[i];
}

template <typename Dtype>
void SquareBackward(const Blob<Dtype>& squares, Blob<Dtype>* input) {
  RETURN_IF_GPU(gpu::SquareBackward(input->count(), squares.gpu_diff(),
                                    input->gpu_data(),
                                    input->mutable_gpu_diff()));
  const Dtype* x = input->cpu_data();
  const Dtype* by_square = squares.cpu_diff();
  Dtype* dx = input->mutable_cpu_diff();
  for (int i = 0; i < input->count(); ++i) {
    dx[i] += SquareGradient(by_square[i], x[i]);
  }
}

#define INSTANTIATE(Dtype)                                               \
  template class Posterior<Dtype>;                                       \
  template void SampleOutput(const NoiseKey& key, uint64_t draw,         \
                             const Blob<Dtype>& variance,                \
                             Blob<Dtype>* epsilon, Blob<Dtype>* output); \
  template void SampleOutputBackward(const Blob<Dtype>& output,          \
                                     const Blob<Dtype>& epsilon,         \
                                     Blob<Dtype>* variance);             \
  template void Square(const Blob<Dtype>& input, Blob<Dtype>* squares);  \
  template void SquareBackward(const Blob<Dtype>& squares, Blob<Dtype>* input)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace bayes
}  // namespace caffe
