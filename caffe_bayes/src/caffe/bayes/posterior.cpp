#include "caffe/bayes/posterior.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "caffe/bayes/gpu.hpp"
#include "caffe/engine/large_arrays.hpp"
#include "caffe/engine/machine.hpp"
#include "caffe/engine/scratch.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {
namespace bayes {

namespace {

// The groups of weights that have one tau, as the shape of delta tells.
template <typename Dtype>
Grouping GroupsOf(const Blob<Dtype>& m, const Blob<Dtype>& delta) {
  if (delta.count() == 1) return {1, m.count()};
  int first = 0, last = delta.num_axes();
  while (first < last && delta.shape(first) == 1) ++first;
  while (last > first && delta.shape(last - 1) == 1) --last;
  bool fits = delta.num_axes() == m.num_axes();
  for (int axis = first; fits && axis < last; ++axis) {
    fits = delta.shape(axis) == m.shape(axis);
  }
  CHECK(fits) << "delta has shape " << delta.shape_string() << ", but m has "
              << m.shape_string()
              << "; it must be one number, or have the lengths of neighbouring "
                 "axes of m and else 1";
  return {m.count(first, last), m.count(last)};
}

// Calls function with the two flags as types, which have them as `value`.
template <typename Function>
void WithFlags(bool first, bool second, Function function) {
  const auto with_second = [&](auto first_flag) {
    if (second) {
      function(first_flag, std::true_type());
    } else {
      function(first_flag, std::false_type());
    }
  };
  if (first) {
    with_second(std::true_type());
  } else {
    with_second(std::false_type());
  }
}

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
      grouping_(GroupsOf(*m, *delta)) {
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
vector<Dtype> Posterior<Dtype>::Taus() const {
  vector<Dtype> taus;
  ComputeTaus(&taus);
  return taus;
}

template <typename Dtype>
void Posterior<Dtype>::ComputeTaus(vector<Dtype>* taus) const {
  taus->resize(grouping_.groups);
  const Dtype* delta = delta_->cpu_data();
  engine::ParallelPortions(grouping_.groups, [&](int, int first, int n) {
    for (int i = first; i < first + n; ++i) {
      (*taus)[i] = Softplus(RaisedDelta(delta[i], delta_min_));
    }
  });
}

template <typename Dtype>
void Posterior<Dtype>::RaiseDelta() {
  const Dtype* delta = delta_->cpu_data();
  const auto is_low = [&](Dtype one) { return one < delta_min_; };
  // What several copies share is written only if it changes.
  if (std::none_of(delta, delta + grouping_.groups, is_low)) return;
  Dtype* raised = delta_->mutable_cpu_data();
  std::replace_if(raised, raised + grouping_.groups, is_low, delta_min_);
}

template <typename Dtype>
void Posterior<Dtype>::UpdateTaus() {
  if (taus_are_fixed_) return;
  RaiseDelta();
  ComputeTaus(&taus_);
  has_taus_ = true;
}

template <typename Dtype>
void Posterior<Dtype>::FixTaus() {
  RaiseDelta();
  if (Caffe::mode() == Caffe::GPU) return;  // Its kernels read delta.
  taus_are_fixed_ = false;
  UpdateTaus();
  taus_are_fixed_ = true;
}

template <typename Dtype>
template <typename Function>
void Posterior<Dtype>::ForEachPart(const vector<Dtype>& taus, int first, int n,
                                   Function function) const {
  const int end = first + n;
  while (first < end) {
    const int group = grouping_.Group(first);
    if (grouping_.inner > 1) {
      const int left = grouping_.inner - first % grouping_.inner;
      n = std::min(left, end - first);
      function(first, n, CommonTau<Dtype>{taus[group]});
    } else {
      n = std::min(grouping_.groups - group, end - first);
      function(first, n, OwnTau<Dtype>{&taus[group]});
    }
    first += n;
  }
}

template <typename Dtype>
void Posterior<Dtype>::Sample(const NoiseKey& key, uint64_t draw,
                              Blob<Dtype>* w, const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(WriteOnGpu({gpu::Write::kSample, w->mutable_gpu_data(),
                            epsilon_->mutable_gpu_data(), key, draw},
                           kl));
  UpdateTaus();
  const int count = m_->count();
  const Dtype* m = m_->cpu_data();
  Dtype* epsilon = epsilon_->mutable_cpu_data();
  Dtype* sample = w->mutable_cpu_data();
  const auto sample_some = [&](int start, int size, Dtype* noise) {
    FillNormal(key, draw, start, size, noise);
    ForEachPart(taus_, start, size, [&](int first, int n, auto taus) {
      const auto loop = ENGINE_CHOOSE(SampleLoop<Dtype, decltype(taus)>);
      loop(n, taus, m + first, noise + (first - start), sample + first);
    });
  };
  const bool is_large = engine::IsLarge(count * sizeof(Dtype));
  engine::ParallelPortions(count, [&](int, int start, int size) {
    if (!is_large) return sample_some(start, size, epsilon + start);
    // To and from memory, a weight takes 16 bytes: m is read, the place of w is
    // read and written, and epsilon, which is not needed before the backward
    // pass, goes past the cache. Computing noise leaves the memory idle, so m
    // and w of the next numbers are fetched meanwhile.
    const int kNumbers = 1024, end = start + size;
    Dtype noise[kNumbers];
    for (int first = start; first < end; first += kNumbers) {
      const int n = std::min(kNumbers, end - first);
      const int next = std::min(count, first + n);
      engine::Fetch(std::min(kNumbers, count - next), m + next);
      engine::FetchToWrite(std::min(kNumbers, count - next), sample + next);
      sample_some(first, n, noise);
      engine::StreamCopy(n, noise, epsilon + first);
    }
    engine::EndStream();
  });
  AddKL(kl);
}

template <typename Dtype>
void Posterior<Dtype>::Mean(Blob<Dtype>* w, const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(WriteOnGpu(
      {gpu::Write::kMean, w->mutable_gpu_data(), epsilon_->mutable_gpu_data()},
      kl));
  RaiseDelta();
  has_taus_ = taus_are_fixed_;
  caffe_set(m_->count(), Dtype(0), epsilon_->mutable_cpu_data());
  caffe_copy(m_->count(), m_->cpu_data(), w->mutable_cpu_data());
  AddKL(kl);
}

template <typename Dtype>
void Posterior<Dtype>::Variance(Blob<Dtype>* variance,
                                const KLTerm<Dtype>& kl) {
  RETURN_IF_GPU(
      WriteOnGpu({gpu::Write::kVariance, variance->mutable_gpu_data()}, kl));
  UpdateTaus();
  const Dtype* m = m_->cpu_data();
  Dtype* out = variance->mutable_cpu_data();
  engine::ParallelPortions(m_->count(), [&](int, int start, int size) {
    ForEachPart(taus_, start, size, [&](int first, int n, auto taus) {
      const auto loop = ENGINE_CHOOSE(VarianceLoop<Dtype, decltype(taus)>);
      loop(n, taus, m + first, out + first);
    });
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
void Posterior<Dtype>::AddDeltaGradient(int group, const TauSums& sums,
                                        Dtype kl_scale) {
  delta_->mutable_cpu_diff()[group] += DeltaGradient(
      delta_->cpu_data()[group], taus_[group], kl_scale,
      static_cast<Dtype>(sums.by_tau), static_cast<Dtype>(sums.sum_sq),
      m_->count() / grouping_.groups);
}

template <typename Dtype>
void Posterior<Dtype>::BackwardInStrips(
    int strip,
    const std::function<void(int first, int n, Dtype* w_diff)>& gradient,
    Dtype kl_scale, bool learn_m, bool learn_delta) {
  CHECK(has_one_tau());
  if (!has_taus_) UpdateTaus();
  const int count = m_->count();
  const Dtype* m = m_->cpu_data();
  const Dtype* epsilon = epsilon_->cpu_data();
  Dtype* m_diff = learn_m ? m_->mutable_cpu_diff() : nullptr;
  std::vector<TauSums> sums((count + strip - 1) / strip);
  const auto run = [&](auto prior, auto learns, auto with_kl) {
    const auto loop = ENGINE_CHOOSE(
        GradientLoop<decltype(learns)::value, decltype(with_kl)::value, Dtype,
                     SampleLoss<Dtype>, decltype(prior)>);
    engine::ParallelFor(sums.size(), [&](int s) {
      const int first = s * strip, n = std::min(strip, count - first);
      const engine::Scratch<Dtype> w_diff(n);
      gradient(first, n, w_diff);
      sums[s] = loop(
          n, taus_[0], kl_scale, SampleLoss<Dtype>{w_diff, epsilon + first},
          prior.From(first), m + first, learn_m ? m_diff + first : nullptr);
    });
  };
  WithPrior([&](auto prior) {
    WithFlags(learn_m, kl_scale != 0,
              [&](auto learns, auto with_kl) { run(prior, learns, with_kl); });
  });
  // In one order, for any number of threads.
  TauSums total;
  for (const TauSums& sum : sums) total.Add(sum);
  if (learn_delta) AddDeltaGradient(0, total, kl_scale);
}

template <typename Dtype>
template <typename Loss>
void Posterior<Dtype>::BackwardFrom(Loss loss, Dtype kl_scale, bool learn_m,
                                    bool learn_delta) {
  if (!has_taus_) UpdateTaus();
  const int count = m_->count();
  const int groups = grouping_.groups, inner = grouping_.inner;
  const Dtype* m = m_->cpu_data();
  Dtype* m_diff = learn_m ? m_->mutable_cpu_diff() : nullptr;
  // Several threads write to it below.
  if (learn_delta) delta_->mutable_cpu_diff();
  const auto add_delta_gradient = [&](int group, const TauSums& sums) {
    if (learn_delta) AddDeltaGradient(group, sums, kl_scale);
  };
  const auto run = [&](auto prior, auto learns, auto with_kl) {
    typedef decltype(prior) Prior;
    const auto loop = ENGINE_CHOOSE(
        GradientLoop<decltype(learns)::value, decltype(with_kl)::value, Dtype,
                     Loss, Prior>);
    // Of weights of one group.
    const auto gradients = [&](int group, int first, int n) {
      return loop(n, taus_[group], kl_scale, loss.From(first),
                  prior.From(first), m + first,
                  learn_m ? m_diff + first : nullptr);
    };
    // Each sum is in one order, for any number of threads.
    if (groups == 1) {
      std::vector<TauSums> sums(engine::Portions(count));
      engine::ParallelPortions(count, [&](int portion, int first, int n) {
        sums[portion] = gradients(0, first, n);
      });
      TauSums total;
      for (const TauSums& sum : sums) total.Add(sum);
      add_delta_gradient(0, total);
    } else if (inner > 1) {
      engine::ParallelFor(groups, [&](int group) {
        TauSums total;
        for (int k = 0; k < count / groups; k += inner) {
          total.Add(gradients(group, grouping_.Weight(group, k), inner));
        }
        add_delta_gradient(group, total);
      });
    } else {
      const auto own_loop = ENGINE_CHOOSE(
          OwnGradientLoop<decltype(learns)::value, decltype(with_kl)::value,
                          Dtype, Loss, Prior>);
      const int kGroups = 256;
      engine::ParallelFor((groups - 1) / kGroups + 1, [&](int part) {
        const int start = part * kGroups;
        const int n = std::min(kGroups, groups - start);
        double by_tau[kGroups] = {}, sum_sq[kGroups] = {};
        for (int k = 0; k < count / groups; ++k) {
          const int first = grouping_.Weight(start, k);
          own_loop(n, &taus_[start], kl_scale, loss.From(first),
                   prior.From(first), m + first,
                   learn_m ? m_diff + first : nullptr, by_tau, sum_sq);
        }
        for (int i = 0; i < n; ++i) {
          add_delta_gradient(start + i, {by_tau[i], sum_sq[i]});
        }
      });
    }
  };
  WithPrior([&](auto prior) {
    WithFlags(learn_m, kl_scale != 0,
              [&](auto learns, auto with_kl) { run(prior, learns, with_kl); });
  });
}

template <typename Dtype>
Dtype Posterior<Dtype>::KL() {
  if (Caffe::mode() == Caffe::GPU) {
    Blob<Dtype> sum((vector<int>()));
    AddKL({1, &sum});
    return sum.cpu_data()[0];
  }
  const vector<Dtype> all_taus = Taus();
  const Dtype* m = m_->cpu_data();
  std::vector<double> sums(engine::Portions(m_->count()));
  WithPrior([&](auto prior) {
    engine::ParallelPortions(
        m_->count(), [&](int portion, int start, int size) {
          ForEachPart(all_taus, start, size, [&](int first, int n, auto taus) {
            for (int i = 0; i < n; ++i) {
              sums[portion] +=
                  WeightKL(m[first + i], taus.tau(i), prior.mean(first + i),
                           prior.std(first + i));
            }
          });
        });
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return static_cast<Dtype>(total);
}

#ifndef CPU_ONLY

template <typename Dtype>
gpu::Delta<Dtype> Posterior<Dtype>::GpuDelta() {
  return {delta_->mutable_gpu_data(), delta_min_, grouping_};
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
  Dtype* delta_diff = learn_delta ? delta_->mutable_gpu_diff() : nullptr;
  WithPrior([&](auto prior) {
    if (grouping_.groups > 1) {
      gpu::BackwardGroups(n, GpuDelta(), kl_scale, loss, prior, m_->gpu_data(),
                          m_diff, delta_diff);
      return;
    }
    gpu::Backward(n, GpuDelta(), kl_scale, loss, prior, m_->gpu_data(), m_diff,
                  GpuSums());
    if (learn_delta) {
      gpu::AddDeltaGradient(n, GpuDelta(), kl_scale, GpuSums(), delta_diff);
    }
  });
}

#endif  // CPU_ONLY

template <typename Dtype>
void SampleOutput(const NoiseKey& key, uint64_t draw, uint64_t offset,
                  const Blob<Dtype>& variance, Blob<Dtype>* epsilon,
                  Blob<Dtype>* output) {
  RETURN_IF_GPU(gpu::SampleOutput(
      output->count(), key, draw, offset, variance.gpu_data(),
      epsilon->mutable_gpu_data(), output->mutable_gpu_data()));
  const Dtype* v = variance.cpu_data();
  Dtype* e = epsilon->mutable_cpu_data();
  Dtype* y = output->mutable_cpu_data();
  const auto loop = ENGINE_CHOOSE(OutputLoop<Dtype>);
  engine::ParallelPortions(output->count(), [&](int, int first, int n) {
    FillNormal(key, draw, offset + first, n, e + first);
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

#define INSTANTIATE(Dtype)                                                 \
  template class Posterior<Dtype>;                                         \
  template void SampleOutput(const NoiseKey& key, uint64_t draw,           \
                             uint64_t offset, const Blob<Dtype>& variance, \
                             Blob<Dtype>* epsilon, Blob<Dtype>* output);   \
  template void SampleOutputBackward(const Blob<Dtype>& output,            \
                                     const Blob<Dtype>& epsilon,           \
                                     Blob<Dtype>* variance);               \
  template void Square(const Blob<Dtype>& input, Blob<Dtype>* squares);    \
  template void SquareBackward(const Blob<Dtype>& squares, Blob<Dtype>* input)
INSTANTIATE(float);
INSTANTIATE(double);
#undef INSTANTIATE

}  // namespace bayes
}  // namespace caffe
