// Loops over rows of n numbers, each row with parameters and sums of its own:
// those of a channel of an image.

// What SumOf adds: `lanes` numbers from i on.
template <typename T>
struct Values {
  const T* x;
  template <int lanes>
  typename VectorOf<T, lanes>::type At(int i) const {
    return Load<lanes>(x + i);
  }
};

template <typename T>
struct Products {
  const T *x, *y;
  template <int lanes>
  typename VectorOf<T, lanes>::type At(int i) const {
    return Load<lanes>(x + i) * Load<lanes>(y + i);
  }
};

// The products x y where x is not above 0.
template <typename T>
struct LowerProducts {
  const T *x, *y;
  template <int lanes>
  typename VectorOf<T, lanes>::type At(int i) const {
    const auto left = Load<lanes>(x + i);
    const typename VectorOf<T, lanes>::type zero = {};
    return (left > zero ? zero : left) * Load<lanes>(y + i);
  }
};

template <typename T>
struct SquaredDistances {
  const T* x;
  T from;
  template <int lanes>
  typename VectorOf<T, lanes>::type At(int i) const {
    const auto distance = Load<lanes>(x + i) - from;
    return distance * distance;
  }
};

// Four sums at a time, as an addition takes longer than the next may wait.
template <template <typename> class Terms, typename T>
inline T SumOf(int n, const Terms<T>& terms) {
  const int lanes = Lanes<T>();
  typename VectorOf<T, lanes>::type sums[4] = {};
  int i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sums[v] += terms.template At<lanes>(i + v * lanes);
    }
  }
  for (; i + lanes <= n; i += lanes) sums[0] += terms.template At<lanes>(i);
  T lane[lanes];
  Store<lanes>(lane, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  T sum = lane[0];
  for (; i < n; ++i) sum += terms.template At<1>(i)[0];
  return sum;
}

template <typename T>
T Sum(int n, const T* x) {
  return SumOf(n, Values<T>{x});
}

template <typename T>
T SlopeGradient(int n, const T* x, const T* dy) {
  return SumOf(n, LowerProducts<T>{x, dy});
}

template <typename T>
void Moments(int rows, int n, const T* x, T* mean, T* variance) {
  if (n == 1) {
    for (int r = 0; r < rows; ++r) mean[r] = x[r];
    for (int r = 0; r < rows; ++r) variance[r] = 0;
    return;
  }
  for (int r = 0; r < rows; ++r, x += n) {
    mean[r] = SumOf(n, Values<T>{x}) / n;
    variance[r] = SumOf(n, SquaredDistances<T>{x, mean[r]}) / n;
  }
}

template <typename T>
void SumsAndProducts(int rows, int n, const T* x, const T* y, T* sum,
                     T* product) {
  if (n == 1) {
    for (int r = 0; r < rows; ++r) sum[r] = x[r];
    for (int r = 0; r < rows; ++r) product[r] = x[r] * y[r];
    return;
  }
  for (int r = 0; r < rows; ++r, x += n, y += n) {
    sum[r] = SumOf(n, Values<T>{x});
    product[r] = SumOf(n, Products<T>{x, y});
  }
}

template <typename T>
void Affine(int rows, int n, const AffineMap<T>& map, const T* x, T* y) {
  if (n == 1) {
    for (int r = 0; r < rows; ++r) {
      const T shift = map.shift ? map.shift[r] : T(0);
      const T factor = map.factor ? map.factor[r] : T(1);
      y[r] = (x[r] - shift) * factor + (map.bias ? map.bias[r] : T(0));
    }
    return;
  }
  for (int r = 0; r < rows; ++r, x += n, y += n) {
    const T shift = map.shift ? map.shift[r] : T(0);
    const T factor = map.factor ? map.factor[r] : T(1);
    const T bias = map.bias ? map.bias[r] : T(0);
    for (int i = 0; i < n; ++i) y[i] = (x[i] - shift) * factor + bias;
  }
}

template <typename T>
void NormalisedGradient(int rows, int n, const T* mean, const T* slope,
                        const T* factor, const T* y, const T* dy, T* dx) {
  if (n == 1) {
    for (int r = 0; r < rows; ++r) {
      dx[r] = (dy[r] - mean[r] - slope[r] * y[r]) * factor[r];
    }
    return;
  }
  for (int r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    const T row_mean = mean[r], row_slope = slope[r], row_factor = factor[r];
    for (int i = 0; i < n; ++i) {
      dx[i] = (dy[i] - row_mean - row_slope * y[i]) * row_factor;
    }
  }
}
