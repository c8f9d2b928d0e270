#include "caffe/bayes/posterior.hpp"

#include "caffe/bayes/formulas.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {
namespace bayes {

namespace {

// The prior of weight i, in the two forms that it has.
template <typename Dtype>
struct CommonPrior {
  Dtype common_mean, common_std;
  Dtype mean(int) const { return common_mean; }
  Dtype std(int) const { return common_std; }
};
template <typename Dtype>
struct OwnPrior {
  const Dtype* means;
  const Dtype* stds;
  Dtype mean(int i) const { return means[i]; }
  Dtype std(int i) const { return stds[i]; }
};

// A sum in double whose order depends on nothing but the number of terms. The
// lanes let the compiler add several terms at once.
class LaneSum {
 public:
  static const int kLanes = 8;
  void Add(int i, double term) { lane_[i % kLanes] += term; }
  double Total() const {
    double total = 0;
    for (double lane : lane_) total += lane;
    return total;
  }

 private:
  double lane_[kLanes] = {};
};

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
  FillNormal(key, draw, 0, count, epsilon);
  for (int i = 0; i < count; ++i) {
    sample[i] = SampledWeight(m[i], tau, epsilon[i]);
  }
}

template <typename Dtype>
void Posterior<Dtype>::Mean(Blob<Dtype>* w) {
  Tau();
  caffe_set(m_->count(), Dtype(0), epsilon_->mutable_cpu_data());
  caffe_copy(m_->count(), m_->cpu_data(), w->mutable_cpu_data());
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
  const int count = m_->count();
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  const Dtype* epsilon = epsilon_->cpu_data();
  const Dtype* w_diff = w.cpu_diff();
  if (learn_m) {
    Dtype* m_diff = m_->mutable_cpu_diff();
    for (int i = 0; i < count; ++i) {
      m_diff[i] += MeanGradient(w_diff[i], tau, epsilon[i]);
    }
    if (kl_scale != 0) {
      WithPrior([&](auto prior) {
        for (int i = 0; i < count; ++i) {
          m_diff[i] +=
              kl_scale * MeanKLGradient(m[i], tau, prior.mean(i), prior.std(i));
        }
      });
    }
  }
  if (learn_delta) {
    const Dtype delta = delta_->cpu_data()[0];
    LaneSum by_tau;
    for (int i = 0; i < count; ++i) {
      by_tau.Add(i, TauGradient(w_diff[i], m[i], epsilon[i]));
    }
    Dtype gradient = SoftplusSlope(delta) * static_cast<Dtype>(by_tau.Total());
    if (kl_scale != 0) {
      LaneSum sum_sq;
      WithPrior([&](auto prior) {
        for (int i = 0; i < count; ++i) {
          const Dtype ratio = m[i] / prior.std(i);
          sum_sq.Add(i, ratio * ratio);
        }
      });
      gradient +=
          kl_scale * DeltaKLGradient(delta, tau,
                                     static_cast<Dtype>(sum_sq.Total()), count);
    }
    delta_->mutable_cpu_diff()[0] += gradient;
  }
}

template <typename Dtype>
Dtype Posterior<Dtype>::KL() {
  const Dtype tau = Tau();
  const Dtype* m = m_->cpu_data();
  LaneSum sum;
  WithPrior([&](auto prior) {
    for (int i = 0; i < m_->count(); ++i) {
      sum.Add(i, WeightKL(m[i], tau, prior.mean(i), prior.std(i)));
    }
  });
  return static_cast<Dtype>(sum.Total());
}

template class Posterior<float>;
template class Posterior<double>;

}  // namespace bayes
}  // namespace caffe
