// The loops over a parameter's or an output's numbers, for one instruction set:
// see engine/targets.inl.

template <typename Dtype, typename Taus>
void SampleLoop(int n, Taus taus, const Dtype* m, const Dtype* epsilon,
                Dtype* w) {
  for (int i = 0; i < n; ++i) {
    w[i] = SampledWeight(m[i], taus.tau(i), epsilon[i]);
  }
}

template <typename Dtype, typename Taus>
void VarianceLoop(int n, Taus taus, const Dtype* m, Dtype* variance) {
  for (int i = 0; i < n; ++i) variance[i] = WeightVariance(m[i], taus.tau(i));
}

template <typename Dtype>
void OutputLoop(int n, const Dtype* variance, const Dtype* epsilon,
                Dtype* output) {
  for (int i = 0; i < n; ++i) {
    output[i] = SampledOutput(output[i], variance[i], epsilon[i]);
  }
}

template <typename Dtype>
void OutputGradientLoop(int n, const Dtype* output_diff, const Dtype* variance,
                        const Dtype* epsilon, Dtype* variance_diff) {
  for (int i = 0; i < n; ++i) {
    variance_diff[i] =
        OutputVarianceGradient(output_diff[i], variance[i], epsilon[i]);
  }
}

// Adds the gradients of n weights of one group to m_diff, and returns the sums
// that delta's gradient is made of. Sums are in Dtype over kRun terms and in
// double over those. Loss and Prior are what weights.hpp has in two forms each.
template <bool learn_m, bool with_kl, typename Dtype, typename Loss,
          typename Prior>
TauSums GradientLoop(int n, Dtype tau, Dtype kl_scale, Loss loss, Prior prior,
                     const Dtype* m, Dtype* m_diff) {
  const int kLanes = 16, kRun = 32 * kLanes;
  TauSums sums = {};
  for (int first = 0; first < n; first += kRun) {
    const int last = first + kRun < n ? first + kRun : n;
    Dtype by_tau[kLanes] = {}, sum_sq[kLanes] = {};
    for (int i = first; i < last; i += kLanes) {
      const int lanes = i + kLanes <= last ? kLanes : last - i;
      const auto add = [&](int j) {
        AddGradients(i + j, learn_m, with_kl, tau, kl_scale, loss, prior, m,
                     m_diff, &by_tau[j], &sum_sq[j]);
      };
      if (lanes == kLanes) {
        for (int j = 0; j < kLanes; ++j) add(j);
      } else {
        for (int j = 0; j < lanes; ++j) add(j);
      }
    }
    for (int j = 0; j < kLanes; ++j) {
      sums.by_tau += by_tau[j];
      sums.sum_sq += sum_sq[j];
    }
  }
  return sums;
}

// The same where each weight is of a group of its own, whose sums are added to.
template <bool learn_m, bool with_kl, typename Dtype, typename Loss,
          typename Prior>
void OwnGradientLoop(int n, const Dtype* taus, Dtype kl_scale, Loss loss,
                     Prior prior, const Dtype* m, Dtype* m_diff, double* by_tau,
                     double* sum_sq) {
  for (int i = 0; i < n; ++i) {
    Dtype by = 0, sq = 0;
    AddGradients(i, learn_m, with_kl, taus[i], kl_scale, loss, prior, m, m_diff,
                 &by, &sq);
    by_tau[i] += by;
    sum_sq[i] += sq;
  }
}
