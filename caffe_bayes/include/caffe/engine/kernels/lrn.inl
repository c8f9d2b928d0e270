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

// s = x s^-beta, by Log and Exp; doubles are for tests.
inline void Normalize(int n, double beta, const double* x,
                      double* __restrict__ s) {
  for (int i = 0; i < n; ++i) s[i] = x[i] * std::pow(s[i], -beta);
}
inline void Normalize(int n, float beta, const float* x,
                      float* __restrict__ s) {
  // What most nets have takes half of the time.
  if (beta == 0.75f) {
    for (int i = 0; i < n; ++i) {
      const float root = std::sqrt(s[i]);
      s[i] = x[i] * (1 / (root * std::sqrt(root)));
    }
    return;
  }
  InBlocks(n, s, s, [beta](float scale) {
    const float logarithm = -beta * Log(scale);
    const float small = Exp(-std::fabs(logarithm));
    return logarithm > 0 ? 1 / small : small;
  });
  for (int i = 0; i < n; ++i) s[i] *= x[i];
}

// A channel's part of LrnAcross.
template <typename T>
inline void LrnChannel(int n, T alpha, T beta, const T* before,
                       const T* entering, const T* leaving, const T* x,
                       T* __restrict__ scale, T* __restrict__ y) {
  for (int i = 0; i < n; ++i) {
    const T grown = before[i] + alpha * (entering[i] * entering[i]);
    scale[i] = y[i] = grown - alpha * (leaving[i] * leaving[i]);
  }
  Normalize(n, beta, x, y);
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
  std::fill(sum, sum + n, norm.k);
  std::fill(zeros, zeros + n, T(0));
  for (int c = 0; c < std::min(half, channels); ++c) {
    const T alpha = norm.alpha, *entering = x + c * distance;
    for (int i = 0; i < n; ++i) sum[i] += alpha * (entering[i] * entering[i]);
  }
  const T* before = sum;
  for (int c = 0; c < channels; ++c) {
    const ptrdiff_t at = c * distance;
    LrnChannel(n, norm.alpha, norm.beta, before,
               c + half < channels ? x + at + half * distance : zeros,
               c > half ? x + at - (half + 1) * distance : zeros, x + at,
               scale + at, y + at);
    before = scale + at;
  }
}

// A channel's part of LrnAcrossGradient: its term of the sums, and its dx when
// its sum is complete.
template <typename T>
inline void LrnTerm(int n, const T* scale, const T* y, const T* dy,
                    T* __restrict__ term, T* __restrict__ sum) {
  for (int i = 0; i < n; ++i) {
    term[i] = dy[i] * y[i] / scale[i];
    sum[i] += term[i];
  }
}
template <typename T>
inline void LrnChannelGradient(int n, T factor, T beta, const T* x,
                               const T* scale, const T* dy, const T* leaving,
                               T* __restrict__ sum, T* __restrict__ dx) {
  std::copy(scale, scale + n, dx);
  Normalize(n, beta, dy, dx);
  for (int i = 0; i < n; ++i) {
    dx[i] -= factor * (x[i] * sum[i]);
    sum[i] -= leaving[i];
  }
}

// dx = dy s^-beta - 2 alpha beta x (the sum of dy y / s over `size` channels).
// `scratch` is for 2 n numbers, and n for each of `size` channels or as many as
// there are.
template <typename T>
void LrnAcrossGradient(const Normalization<T>& norm, int channels,
                       ptrdiff_t distance, int n, const T* x, const T* scale,
                       const T* y, const T* dy, T* dx, T* scratch) {
  const int half = norm.size / 2;
  // Behind them are the terms of the last channels, in turns.
  T *sum = scratch, *zeros = scratch + n, *terms = zeros + n;
  std::fill(sum, terms, T(0));
  for (int c = 0; c < channels + half; ++c) {
    if (c < channels) {
      const ptrdiff_t at = c * distance;
      LrnTerm(n, scale + at, y + at, dy + at, terms + c % norm.size * n, sum);
    }
    const int done = c - half, gone = done - half;
    if (done < 0) continue;
    const ptrdiff_t at = done * distance;
    LrnChannelGradient(
        n, 2 * norm.alpha * norm.beta, norm.beta, x + at, scale + at, dy + at,
        gone < 0 ? zeros : terms + gone % norm.size * n, sum, dx + at);
  }
}

// The same within channels: s = 1 + alpha a, where a is the average of the
// squares around x.
template <typename T>
void LrnWithin(const Normalization<T>& norm, int n, const T* x,
               const T* average, T* y) {
  const T alpha = norm.alpha;
  for (int i = 0; i < n; ++i) y[i] = 1 + alpha * average[i];
  Normalize(n, norm.beta, x, y);
}

// The gradient by x for a given average, and the gradient by the average.
template <typename T>
void LrnWithinGradient(const Normalization<T>& norm, int n, const T* x,
                       const T* average, const T* dy, T* __restrict__ daverage,
                       T* __restrict__ dx) {
  const T alpha = norm.alpha, beta = norm.beta;
  for (int i = 0; i < n; ++i) daverage[i] = dx[i] = 1 + alpha * average[i];
  Normalize(n, beta, dy, dx);
  for (int i = 0; i < n; ++i) {
    daverage[i] = -alpha * beta * x[i] * (dx[i] / daverage[i]);
  }
}
