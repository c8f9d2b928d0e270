// Loops over arrays, which the compiler turns into vectors by itself (but Sum).

template <typename T>
T Sum(int n, const T* x) {
  const int lanes = Lanes<T>();
  typename VectorOf<T, lanes>::type sums{};
  int i = 0;
  for (; i + lanes <= n; i += lanes) sums += Load<lanes>(x + i);
  T sum = 0;
  for (int j = 0; j < lanes; ++j) sum += sums[j];
  for (; i < n; ++i) sum += x[i];
  return sum;
}

template <typename T>
void Relu(int n, T slope, const T* x, T* y) {
  // NaN stays NaN. Adding 0 makes a 0 of -0.
  for (int i = 0; i < n; ++i) y[i] = (x[i] < 0 ? slope * x[i] : x[i]) + T(0);
}

template <typename T>
void ReluGradient(int n, T slope, const T* x, const T* dy, T* dx) {
  for (int i = 0; i < n; ++i) {
    dx[i] = dy[i] * (x[i] > 0 ? T(1) : slope);
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

template <typename T>
void MomentumStep(int n, T scale, T decay, T rate, T momentum, T* w, T* dw,
                  T* h) {
  for (int i = 0; i < n; ++i) {
    const T gradient = scale * dw[i] + decay * w[i];
    const T step = momentum * h[i] + rate * gradient;
    h[i] = step;
    dw[i] = step;
    w[i] -= step;
  }
}
