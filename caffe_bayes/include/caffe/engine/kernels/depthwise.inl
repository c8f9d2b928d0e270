// Convolution of one channel: see depthwise.hpp.

template <int vectors, typename T>
inline void WeightedVectors(int n, int taps, const int* offset, const T* w,
                            T bias, const T* x, T* y) {
  const int lanes = Lanes<T>();
  typename VectorOf<T, lanes>::type sum[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) sum[v] = Broadcast<lanes>(bias);
  for (int k = 0; k < taps; ++k) {
    const auto weight = Broadcast<lanes>(w[k]);
    const T* from = x + offset[k];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sum[v] += weight * Load<lanes>(from + v * lanes);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    if (n >= (v + 1) * lanes) {
      Store<lanes>(y + v * lanes, sum[v]);
    } else {
      for (int j = v * lanes; j < n; ++j) y[j] = sum[v][j - v * lanes];
    }
  }
}

template <typename T>
void WeightedRow(int n, int taps, const int* offset, const T* w, T bias,
                 const T* x, T* y) {
  const int lanes = Lanes<T>();
  int j = 0;
  for (; n - j >= 4 * lanes; j += 4 * lanes) {
    WeightedVectors<4>(n - j, taps, offset, w, bias, x + j, y + j);
  }
  for (; n - j >= 2 * lanes; j += 2 * lanes) {
    WeightedVectors<2>(n - j, taps, offset, w, bias, x + j, y + j);
  }
  for (; j < n; j += lanes) {
    WeightedVectors<1>(n - j, taps, offset, w, bias, x + j, y + j);
  }
}

// The sums for `taps` offsets.
template <int taps, typename T>
inline void SomeProductsOfRows(int rows, int n, const T* dy, const T* x,
                               ptrdiff_t x_row, const int* offset, T* sum) {
  const int lanes = Lanes<T>(), half = lanes / 2;
  typename VectorOf<T, lanes>::type whole[taps] = {};
  typename VectorOf<T, half>::type rest[taps] = {};
  T last[taps] = {};
  for (int r = 0; r < rows; ++r, dy += n, x += x_row) {
    int j = 0;
    for (; j + lanes <= n; j += lanes) {
      const auto left = Load<lanes>(dy + j);
#pragma GCC unroll 4
      for (int k = 0; k < taps; ++k) {
        whole[k] += left * Load<lanes>(x + offset[k] + j);
      }
    }
    for (; j + half <= n; j += half) {
      const auto left = Load<half>(dy + j);
#pragma GCC unroll 4
      for (int k = 0; k < taps; ++k) {
        rest[k] += left * Load<half>(x + offset[k] + j);
      }
    }
    for (; j < n; ++j) {
#pragma GCC unroll 4
      for (int k = 0; k < taps; ++k) last[k] += dy[j] * x[offset[k] + j];
    }
  }
  for (int k = 0; k < taps; ++k) {
    sum[k] = last[k];
    for (int j = 0; j < half; ++j) sum[k] += rest[k][j];
    for (int j = 0; j < lanes; ++j) sum[k] += whole[k][j];
  }
}

template <typename T>
void ProductsOfRows(int rows, int n, const T* dy, const T* x, ptrdiff_t x_row,
                    int taps, const int* offset, T* sum) {
  int k = 0;
  for (; k + 3 <= taps; k += 3) {
    SomeProductsOfRows<3>(rows, n, dy, x, x_row, offset + k, sum + k);
  }
  for (; k < taps; ++k) {
    SomeProductsOfRows<1>(rows, n, dy, x, x_row, offset + k, sum + k);
  }
}
