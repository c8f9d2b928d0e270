// The transforms of Winograd's convolution: see winograd.hpp.

// From `first` on as many kernels as `lanes` divides; returns the next.
template <int lanes, typename T>
inline int WinogradWeightsBy(int first, int n, const T* kernel, T* out,
                             ptrdiff_t stride) {
  typedef typename VectorOf<T, lanes>::type Vector;
  int i = first;
  for (; i + lanes <= n; i += lanes) {
    Vector half[4][3];
#pragma GCC unroll 3
    for (int s = 0; s < 3; ++s) {
      const Vector a = Load<lanes>(kernel + s * n + i);
      const Vector b = Load<lanes>(kernel + (3 + s) * n + i);
      const Vector c = Load<lanes>(kernel + (6 + s) * n + i);
      half[0][s] = a;
      half[1][s] = (a + b + c) * T(0.5);
      half[2][s] = (a - b + c) * T(0.5);
      half[3][s] = c;
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Vector a = half[r][0], b = half[r][1], c = half[r][2];
      T* to = out + 4 * r * stride + i;
      Store<lanes>(to, a);
      Store<lanes>(to + stride, (a + b + c) * T(0.5));
      Store<lanes>(to + 2 * stride, (a - b + c) * T(0.5));
      Store<lanes>(to + 3 * stride, c);
    }
  }
  return i;
}

// Kernels of 3 x 3, kernel[(3 r + s) n + i], to 4 x 4: G g G'.
template <typename T>
void WinogradWeights(int n, const T* kernel, T* out, ptrdiff_t stride) {
  const int rest = WinogradWeightsBy<Lanes<T>()>(0, n, kernel, out, stride);
  WinogradWeightsBy<1>(rest, n, kernel, out, stride);
}

// The 4 x 4 pixels under each tile of a panel, panel[16 i + 4 r + s][tile], to
// B' d B, one panel for each of the 16 numbers.
template <typename T>
void WinogradInput(int n, const T* panel, T* out, ptrdiff_t stride) {
  const int lanes = Lanes<T>(), width = 2 * lanes;
  for (int i = 0; i < n; ++i) {
    for (int v = 0; v < width; v += lanes) {
      typename VectorOf<T, lanes>::type d[4][4];
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        const T* from = panel + (16 * i + s) * width + v;
        const auto a = Load<lanes>(from), b = Load<lanes>(from + 4 * width),
                   c = Load<lanes>(from + 8 * width),
                   e = Load<lanes>(from + 12 * width);
        d[0][s] = a - c;
        d[1][s] = b + c;
        d[2][s] = c - b;
        d[3][s] = b - e;
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        T* to = out + 4 * r * stride + i * width + v;
        Store<lanes>(to, d[r][0] - d[r][2]);
        Store<lanes>(to + stride, d[r][1] + d[r][2]);
        Store<lanes>(to + 2 * stride, d[r][2] - d[r][1]);
        Store<lanes>(to + 3 * stride, d[r][1] - d[r][3]);
      }
    }
  }
}

// The 16 products of each tile to its 2 x 2 pixels, A' m A: two rows of pixels,
// one behind the other, for each of the n rows.
template <typename T>
void WinogradOutput(int n, const T* tiles, ptrdiff_t stride, const T* bias,
                    T* out) {
  const int lanes = Lanes<T>(), width = 2 * lanes;
  typedef typename VectorOf<T, lanes>::type Vector;
  for (int i = 0; i < n; ++i) {
    const Vector start = Broadcast<lanes>(bias ? bias[i] : T(0));
    for (int v = 0; v < width; v += lanes) {
      Vector half[2][4];
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        const T* from = tiles + s * stride + i * width + v;
        const auto a = Load<lanes>(from), b = Load<lanes>(from + 4 * stride),
                   c = Load<lanes>(from + 8 * stride),
                   d = Load<lanes>(from + 12 * stride);
        half[0][s] = a + b + c;
        half[1][s] = b - c - d;
      }
#pragma GCC unroll 2
      for (int row = 0; row < 2; ++row) {
        const Vector even = start + half[row][0] + half[row][1] + half[row][2];
        const Vector odd = start + half[row][1] - half[row][2] - half[row][3];
        StorePairs<lanes>(out + (2 * i + row) * 2 * width + 2 * v, even, odd);
      }
    }
  }
}
