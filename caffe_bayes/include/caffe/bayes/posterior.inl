// The loops over a parameter's numbers, for one instruction set: see
// engine/targets.inl. Prior is one of the two forms in posterior.cpp.

template <typename Dtype>
void SampleLoop(int n, Dtype tau, const Dtype* m, const Dtype* epsilon,
                Dtype* w) {
  for (int i = 0; i < n; ++i) w[i] = SampledWeight(m[i], tau, epsilon[i]);
}

// Adds the gradients of n weights to m_diff, and returns the sums that delta's
// gradient is made of. Sums are in Dtype over kRun terms and in double over
// those.
template <bool learn_m, bool with_kl, typename Dtype, typename Prior>
TauSums GradientLoop(int n, Dtype tau, Dtype kl_scale, Prior prior,
                     const Dtype* m, const Dtype* epsilon, const Dtype* w_diff,
                     Dtype* m_diff) {
  const int kLanes = 16, kRun = 32 * kLanes;
  TauSums sums = {};
  for (int first = 0; first < n; first += kRun) {
    const int last = first + kRun < n ? first + kRun : n;
    Dtype by_tau[kLanes] = {}, sum_sq[kLanes] = {};
    for (int i = first; i < last; i += kLanes) {
      const int lanes = i + kLanes <= last ? kLanes : last - i;
      const auto add = [&](int j) {
        const int k = i + j;
        by_tau[j] += TauGradient(w_diff[k], m[k], epsilon[k]);
        if (learn_m) {
          m_diff[k] += MeanGradient(w_diff[k], tau, epsilon[k]);
        }
        if (with_kl) {
          sum_sq[j] += m[k] * m[k] * Precision(prior.std(k));
          if (learn_m) {
            m_diff[k] += kl_scale *
                         MeanKLGradient(m[k], tau, prior.mean(k), prior.std(k));
          }
        }
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
