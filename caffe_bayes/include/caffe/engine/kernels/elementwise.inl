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
void ActivationGradient(int n, T p, const T* x, const T* y, const T* dy,
                        T* dx) {
  for (int i = 0; i < n; ++i) dx[i] = dy[i] * Function<T>::Slope(p, x[i], y[i]);
}

template <template <typename> class Function, typename T>
constexpr Activation<T> ActivationOf() {
  return {Activate<Function, T>, ActivationGradient<Function, T>};
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
