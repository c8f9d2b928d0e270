// Local response normalisation: y = x s^-beta, where s, the scale, grows with
// the squares of the numbers around x.

// ln(x) in operations that have vectors: n ln(2) + ln(m) for x = 2^n m with m
// from sqrt(1/2) to sqrt(2), and ln(m) = 2 artanh((m - 1) / (m + 1)) by its
// Taylor series. Good to about two units in the last place.
inline float Log(float x) {
  const float infinity = std::numeric_limits<float>::infinity();
  // Numbers below FLT_MIN have no exponent of their own.
  const bool tiny = x < FLT_MIN;
  const float scaled = tiny ? x * 16777216.0f : x;  // 2^24
  int32_t bits;
  std::memcpy(&bits, &scaled, sizeof(bits));
  const int32_t n = (bits - 0x3f3504f3) >> 23;  // the bits of sqrt(1/2)
  bits -= n * (1 << 23);
  float m;
  std::memcpy(&m, &bits, sizeof(m));
  const float z = (m - 1.0f) / (m + 1.0f), z2 = z * z;
  float series = 2.0f / 9.0f;
  series = series * z2 + 2.0f / 7.0f;
  series = series * z2 + 2.0f / 5.0f;
  series = series * z2 + 2.0f / 3.0f;
  series = series * z2 + 2.0f;
  const float power = static_cast<float>(tiny ? n - 24 : n);
  const float logarithm = power * 0.693147181f + series * z;
  const float zero_or_less =
      x == 0.0f ? -infinity : std::numeric_limits<float>::quiet_NaN();
  return x > 0.0f ? (x < infinity ? logarithm : x) : zero_or_less;
}

inline double Power(double x, double exponent) { return std::pow(x, exponent); }

// By Log and Exp, which have vectors.
inline float Power(float x, float exponent) {
  const float logarithm = exponent * Log(x);
  const float small = Exp(-std::fabs(logarithm));
  return logarithm > 0 ? 1 / small : small;
}

// s is k and alpha times the sum of the squares of `size` channels. Each sum is
// made of that of the channel before, as Caffe does it: one NaN or infinity
// spoils all channels behind it. The numbers of a channel are `distance` behind
// those of the channel before. `scratch` is for 2 n numbers.
template <typename T>
void LrnAcross(const Normalization<T>& norm, int channels, ptrdiff_t distance,
               int n, const T* x, T* scale, T* y, T* scratch) {
  const int half = norm.size / 2;
  T *sum = scratch, *zeros = scratch + n;
  for (int i = 0; i < n; ++i) sum[i] = norm.k;
  for (int i = 0; i < n; ++i) zeros[i] = 0;
  for (int c = 0; c < half && c < channels; ++c) {
    const T* entering = x + c * distance;
    for (int i = 0; i < n; ++i) {
      sum[i] += norm.alpha * (entering[i] * entering[i]);
    }
  }
  const T* before = sum;
  for (int c = 0; c < channels; ++c) {
    const T* here = x + c * distance;
    const T* entering = c + half < channels ? here + half * distance : zeros;
    const T* leaving = c > half ? here - (half + 1) * distance : zeros;
    T* __restrict__ s = scale + c * distance;
    T* __restrict__ to = y + c * distance;
    for (int i = 0; i < n; ++i) {
      const T grown = before[i] + norm.alpha * (entering[i] * entering[i]);
      s[i] = grown - norm.alpha * (leaving[i] * leaving[i]);
      to[i] = here[i] * Power(s[i], -norm.beta);
    }
    before = s;
  }
}

// dx = dy s^-beta - 2 alpha beta x (the sum of dy y / s over `size` channels).
// `scratch` is for (size + 2) n numbers.
template <typename T>
void LrnAcrossGradient(const Normalization<T>& norm, int channels,
                       ptrdiff_t distance, int n, const T* x, const T* scale,
                       const T* y, const T* dy, T* dx, T* scratch) {
  const int half = norm.size / 2;
  const T factor = 2 * norm.alpha * norm.beta;
  T* __restrict__ sum = scratch, *zeros = scratch + n;
  for (int i = 0; i < n; ++i) sum[i] = zeros[i] = 0;
  // The terms of the last channels, in turns.
  T* const terms = scratch + 2 * n;
  const auto term = [&](int c) { return terms + c % norm.size * n; };
  for (int c = 0; c < channels + half; ++c) {
    const T* entering = zeros;
    if (c < channels) {
      T* __restrict__ to = term(c);
      const ptrdiff_t at = c * distance;
      for (int i = 0; i < n; ++i)
        to[i] = dy[at + i] * y[at + i] / scale[at + i];
      entering = to;
    }
    // The channel whose sum is complete with this one.
    const int done = c - half;
    const T* leaving = done >= half ? term(done - half) : zeros;
    for (int i = 0; i < n; ++i) sum[i] += entering[i];
    if (done < 0) continue;
    const ptrdiff_t at = done * distance;
    T* __restrict__ to = dx + at;
    for (int i = 0; i < n; ++i) {
      to[i] = dy[at + i] * Power(scale[at + i], -norm.beta) -
              factor * (x[at + i] * sum[i]);
      sum[i] -= leaving[i];
    }
  }
}

// The same within channels: s = 1 + alpha a, where a is the average of the
// squares around x.
template <typename T>
void LrnWithin(const Normalization<T>& norm, int n, const T* x,
               const T* average, T* y) {
  for (int i = 0; i < n; ++i) {
    y[i] = x[i] * Power(1 + norm.alpha * average[i], -norm.beta);
  }
}

// The gradient by x for a given average, and the gradient by the average.
template <typename T>
void LrnWithinGradient(const Normalization<T>& norm, int n, const T* x,
                       const T* average, const T* dy, T* __restrict__ daverage,
                       T* __restrict__ dx) {
  const T factor = -norm.alpha * norm.beta;
  for (int i = 0; i < n; ++i) {
    const T scale = 1 + norm.alpha * average[i];
    const T power = Power(scale, -norm.beta);
    daverage[i] = dy[i] * x[i] * (factor * power / scale);
    dx[i] = dy[i] * power;
  }
}
