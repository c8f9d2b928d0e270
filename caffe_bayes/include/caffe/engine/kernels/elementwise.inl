// Loops over arrays, which the compiler turns into vectors by itself.

// The functions of Kernels::relu and others: their values, and their slopes at
// x, where they are y.
template <typename T>
struct Relu {
  // NaN stays NaN. Adding 0 makes a 0 of -0.
  static T Value(T p, T x) { return (x < 0 ? p * x : x) + T(0); }
  static T Slope(T p, T x, T) { return x > 0 ? T(1) : p; }
};

template <typename T>
struct Sigmoid {
  static T Value(T p, T x) {
    const T e = Exp(-std::fabs(p * x));
    return (p * x < 0 ? e : T(1)) / (1 + e);
  }
  static T Slope(T p, T, T y) { return p * y * (1 - y); }
};

template <typename T>
struct Tanh {
  static T Value(T, T x) {
    const T e = ExpMinus1(-2 * std::fabs(x));
    return std::copysign(e / (2 + e), x);
  }
  static T Slope(T, T, T y) { return 1 - y * y; }
};

template <typename T>
struct Elu {
  static T Value(T p, T x) {
    const T below = p * ExpMinus1(x);
    return x > 0 ? x : below;
  }
  static T Slope(T p, T x, T y) {
    const T below = p + y;
    return x > 0 ? T(1) : below;
  }
};

template <template <typename> class Function, typename T>
void Activate(int n, T p, const T* x, T* y) {
  for (int i = 0; i < n; ++i) y[i] = Function<T>::Value(p, x[i]);
}

template <template <typename> class Function, typename T>
void ActivateInBlocks(int n, T p, const T* x, T* y) {
  InBlocks(n, x, y, [p](T value) { return Function<T>::Value(p, value); });
}

template <template <typename> class Function, typename T>
void ActivationGradient(int n, T p, const T* x, const T* y, const T* dy,
                        T* dx) {
  for (int i = 0; i < n; ++i) dx[i] = dy[i] * Function<T>::Slope(p, x[i], y[i]);
}

template <template <typename> class Function, typename T>
constexpr Activation<T> ActivationOf() {
  return {ActivateInBlocks<Function, T>, ActivationGradient<Function, T>};
}

template <typename T>
constexpr Activation<T> ReluActivation() {
  return {Activate<Relu, T>, ActivationGradient<Relu, T>};
}

// With a = m / sqrt(v), the density f and the distribution F of N(0, 1) at a:
//   E max(x, 0) = m F + sqrt(v) f
//   Var max(x, 0) = v (F + a^2 F (1 - F) + a f (1 - 2 F) - f^2)
//   Cov(x, max(x, 0)) = v F
// and relu(x) = p x + (1 - p) max(x, 0). No large numbers cancel each other.
template <typename T>
inline void ReluMomentsOfBlock(T p, T* __restrict__ mean,
                               T* __restrict__ variance) {
  const T far = 12;  // where f and 1 - F are 0 for a float
  for (int i = 0; i < kBlockBytes / static_cast<int>(sizeof(T)); ++i) {
    const T x = mean[i], spread = variance[i], deviation = std::sqrt(spread);
    const T ratio =
        x / (deviation > 0 ? deviation : std::numeric_limits<T>::min());
    const T a = ratio > far ? far : ratio < -far ? -far : ratio;
    const T e = Exp(-a * a / 2);
    const T density = e * T(0.3989422804014327);
    // 1 - F(|a|) within 1e-7: Abramowitz and Stegun, 7.1.26.
    const T t = 1 / (1 + T(0.23164188794) * std::fabs(a));
    const T tail = e * t *
                   (T(0.127414796) +
                    t * (T(-0.142248368) +
                         t * (T(0.7107068705) +
                              t * (T(-0.7265760135) + t * T(0.5307027145)))));
    const T below = a > 0 ? 1 - tail : tail;
    const T part = x * below + deviation * density;
    const T least = x > 0 ? x : T(0);  // Jensen
    const T share = below + a * a * tail * (1 - tail) +
                    a * density * (1 - 2 * below) - density * density;
    mean[i] = p * x + (1 - p) * (part > least ? part : least);
    variance[i] = spread * (p * p + 2 * p * (1 - p) * below +
                            (1 - p) * (1 - p) * (share > 0 ? share : T(0)));
  }
}

template <typename T>
void ReluMoments(int n, T p, const T* m, const T* v, T* mean, T* variance) {
  constexpr int kBlock = kBlockBytes / sizeof(T);
  T means[kBlock] = {}, variances[kBlock] = {};
  for (int first = 0; first < n; first += kBlock) {
    const size_t bytes = std::min(kBlock, n - first) * sizeof(T);
    std::memcpy(means, m + first, bytes);
    std::memcpy(variances, v + first, bytes);
    ReluMomentsOfBlock(p, means, variances);
    std::memcpy(mean + first, means, bytes);
    std::memcpy(variance + first, variances, bytes);
  }
}

template <typename T>
void Softmax(int channels, int n, const T* x, T* y, T* scratch) {
  for (int i = 0; i < n; ++i) scratch[i] = x[i];
  for (int c = 1; c < channels; ++c) {
    for (int i = 0; i < n; ++i) {
      const T value = x[c * n + i];
      scratch[i] = value > scratch[i] ? value : scratch[i];
    }
  }
  for (int c = 0; c < channels; ++c) {
    for (int i = 0; i < n; ++i) y[c * n + i] = Exp(x[c * n + i] - scratch[i]);
  }
  for (int i = 0; i < n; ++i) scratch[i] = 0;
  for (int c = 0; c < channels; ++c) {
    for (int i = 0; i < n; ++i) scratch[i] += y[c * n + i];
  }
  for (int c = 0; c < channels; ++c) {
    for (int i = 0; i < n; ++i) y[c * n + i] /= scratch[i];
  }
}
