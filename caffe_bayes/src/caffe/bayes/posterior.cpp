#include "caffe/bayes/posterior.hpp"

#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/engine/machine.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {
namespace bayes {

namespace {

// The prior of weight i, in the two forms that it has; From(k) is that of
// the weights from k on.
template <typename Dtype>
struct CommonPrior {
  Dtype common_mean, common_std;
  Dtype mean(int) const { return common_mean; }
  Dtype std(int) const { return common_std; }
  CommonPrior From(int) const { return *this; }
};
template <typename Dtype>
struct OwnPrior {
  const Dtype* means;
  const Dtype* stds;
  Dtype mean(int i) const { return means[i]; }
  Dtype std(int i) const { return stds[i]; }
  OwnPrior From(int first) const { return {means + first, stds + first}; }
};

// The derivatives of the loss by the mean and by tau of weight i, given those
// by the weights that were drawn, or by the weights' variances.
template <typename Dtype>
struct SampleLoss {
  const Dtype* w_diff;
  const Dtype* epsilon;
  Dtype by_mean(int i, Dtype, Dtype tau) const {
    return MeanGradient(w_diff[i], tau, epsilon[i]);
  }
  Dtype by_tau(int i, Dtype m, Dtype) const {
    return TauGradient(w_diff[i], m, epsilon[i]);
  }
  SampleLoss From(int first) const { return {w_diff + first, epsilon + first}; }
};
template <typename Dtype>
struct VarianceLoss {
  const Dtype* variance_diff;
  Dtype by_mean(int i, Dtype m, Dtype tau) const {
    return VarianceMeanGradient(variance_diff[i], m, tau);
  }
  Dtype by_tau(int i, Dtype m, Dtype tau) const {
    return VarianceTauGradient(variance_diff[i], m, tau);
  }
  VarianceLoss From(int first) const { return {variance_diff + first}; }
};

// What delta's gradient is made of: sums over weights of the derivative of the
// loss by tau, and of (m / prior std)^2.
struct TauSums {
  double by_tau, sum_sq;
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
      delta_min_(SoftplusInverse(tau_min)),
      prior_mean_(0),
      prior_std_(1) {
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
  if (delta_->cpu_data()[0] < delta_min_) {
    delta_->mutable_cpu_data()[0] = delta_min_;
  }
  return Softplus(delta_->cpu_data()[0]);
}

template <typename Dtype>
void Posterior<Dtype>::Sample(const NoiseKey& key, uint64_t draw,
                              Blob<Dtype>* w) {
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
}

template <typename Dtype>
void Posterior<Dtype>::Mean(Blob<Dtype>* w) {
  Tau();
  caffe_set(m_->count(), Dtype(0), epsilon_->mutable_cpu_data());
  caffe_copy(m_->count(), m_->cpu_data(), w->mutable_cpu_data());
}

template <typename Dtype>
void Posterior<Dtype>::Variance(Blob<Dtype>* variance) {
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  Dtype* out = variance->mutable_cpu_data();
  const auto loop = ENGINE_CHOOSE(VarianceLoop<Dtype>);
  engine::ParallelPortions(m_->count(), [&](int, int first, int n) {
    loop(n, tau, m + first, out + first);
  });
}

template <typename Dtype>
template <typename Function>
void Posterior<Dtype>::WithPrior(Function function) const {
  if (prior_means_) {
    function(
        OwnPrior<Dtype>{prior_means_->cpu_data(), prior_stds_->cpu_data()});
  } else {
    function(CommonPrior<Dtype>{prior_mean_, prior_std_});
  }
}

template <typename Dtype>
void Posterior<Dtype>::Backward(const Blob<Dtype>& w, Dtype kl_scale,
                                bool learn_m, bool learn_delta) {
  BackwardFrom(SampleLoss<Dtype>{w.cpu_diff(), epsilon_->cpu_data()}, kl_scale,
               learn_m, learn_delta);
}

template <typename Dtype>
void Posterior<Dtype>::BackwardVariance(const Blob<Dtype>& variance,
                                        Dtype kl_scale, bool learn_m,
                                        bool learn_delta) {
  BackwardFrom(VarianceLoss<Dtype>{variance.cpu_diff()}, kl_scale, learn_m,
               learn_delta);
}

template <typename Dtype>
template <typename Loss>
void Posterior<Dtype>::BackwardFrom(Loss loss, Dtype kl_scale, bool learn_m,
                                    bool learn_delta) {
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
    const Dtype delta = delta_->cpu_data()[0];
    Dtype gradient = SoftplusSlope(delta) * static_cast<Dtype>(total.by_tau);
    if (kl_scale != 0) {
      gradient +=
          kl_scale *
          DeltaKLGradient(delta, tau, static_cast<Dtype>(total.sum_sq), count);
    }
    delta_->mutable_cpu_diff()[0] += gradient;
  }
}

template <typename Dtype>
Dtype Posterior<Dtype>::KL() {
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

template <typename Dtype>
void SampleOutput(const NoiseKey& key, uint64_t draw,
                  const Blob<Dtype>& variance, Blob<Dtype>* epsilon,
                  Blob<Dtype>* output) {
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
  const Dtype* dy = output.cpu_diff();
  const Dtype* e = epsilon.cpu_data();
  const Dtype* v = variance->cpu_data();
  Dtype* dv = variance->mutable_cpu_diff();
  const auto loop = ENGINE_CHOOSE(OutputGradientLoop<Dtype>);
  engine::ParallelPortions(output.count(), [&](int, int first, int n) {
    loop(n, dy + first, v + first, e + first, dv + first);
  });
}

#define INSTANTIATE(Dtype)                                               \
  template class Posterior<Dtype>;                                       \
  template void SampleOutput(const NoiseKey& key, uint64_t draw,         \
                             const Blob<Dtype>& variance,                \
                             Blob<Dtype>* epsilon, Blob<Dtype>* output); \
  template void SampleOutputBackward(const Blob<Dtype>& output,          \
                                     const Blob<Dtype>& epsilon,         \
                                     Blob<Dtype>* variance)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace bayes
}  // namespace caffe
