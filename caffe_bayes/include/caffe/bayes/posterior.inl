// The loops over a parameter's numbers, for one instruction set: see
// engine/targets.inl. Prior is one of the two forms in posterior.cpp.

template <typename Dtype>
void SampleLoop(int n, Dtype tau, const Dtype* m, const Dtype* epsilon,
                Dtype* w) {
  for (int i = 0; i < n; ++i) w[i] = SampledWeight(m[i], tau, epsilon[i]);
}

template <typename Dtype, typename Prior>
void GradientLoop(int n, Dtype tau, Dtype kl_scale, Prior prior, const Dtype* m,
                  const Dtype* epsilon, const Dtype* w_diff, Dtype* m_diff) {
  if (kl_scale == 0) {
    for (int i = 0; i < n; ++i) {
      m_diff[i] += MeanGradient(w_diff[i], tau, epsilon[i]);
    }
    return;
  }
  for (int i = 0; i < n; ++i) {
    m_diff[i] +=
        MeanGradient(w_diff[i], tau, epsilon[i]) +
        kl_scale * MeanKLGradient(m[i], tau, prior.mean(i), prior.std(i));
  }
}

// The sums that delta's gradient is made of.
template <typename Dtype, typename Prior>
TauSums TauLoop(int n, Prior prior, const Dtype* m, const Dtype* epsilon,
                const Dtype* w_diff) {
  const int kLanes = 16;
  double by_tau[kLanes] = {}, sum_sq[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      by_tau[j] += TauGradient(w_diff[i + j], m[i + j], epsilon[i + j]);
    }
    for (int j = 0; j < kLanes; ++j) {
      const Dtype ratio = m[i + j] / prior.std(i + j);
      sum_sq[j] += ratio * ratio;
    }
  }
  for (; i < n; ++i) {
    by_tau[0] += TauGradient(w_diff[i], m[i], epsilon[i]);
    const Dtype ratio = m[i] / prior.std(i);
    sum_sq[0] += ratio * ratio;
  }
  TauSums sums = {};
  for (int j = 0; j < kLanes; ++j) {
    sums.by_tau += by_tau[j];
    sums.sum_sq += sum_sq[j];
  }
  return sums;
}
