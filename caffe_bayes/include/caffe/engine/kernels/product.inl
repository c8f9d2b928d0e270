// The innermost loops of every matrix product.

template <typename T, int rows, int vectors>
void Multiply(int columns, int depth, const LeftOperand<T>& left,
              const T* panel, T* c, ptrdiff_t c_row, const Start<T>& start) {
  const int lanes = Lanes<T>();
  typename VectorOf<T, lanes>::type sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    const T bias = start.row_bias ? start.row_bias[i] : T(0);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sum[i][v] = Broadcast<lanes>(bias);
  }
  // Two pointers and eight distances reach all rows, and fit into registers.
  const ptrdiff_t row = left.row, next = left.column;
  const ptrdiff_t distance[8] = {0,       row,     2 * row, 3 * row,
                                 4 * row, 5 * row, 6 * row, 7 * row};
  const T* run = left.data;
  for (int done = 0; done < depth;) {
    const T* a = run;
    const T* upper = a + 8 * row;
    const int end = left.run ? done + left.run : depth;
    for (; done < end; ++done) {
      typename VectorOf<T, lanes>::type right[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        right[v] = Load<lanes>(panel + v * lanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const auto x =
            Broadcast<lanes>(i < 8 ? a[distance[i]] : upper[distance[i % 8]]);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sum[i][v] += x * right[v];
      }
      a += next;
      upper += next;
      panel += 2 * lanes;
    }
    run += left.run_distance;
  }
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) {
    const int used = columns - v * lanes;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      T* to = c + i * c_row + v * lanes;
      if (used >= lanes) {
        Store<lanes>(to, start.add ? Load<lanes>(to) + sum[i][v] : sum[i][v]);
      } else {
        for (int j = 0; j < used; ++j) {
          to[j] = start.add ? to[j] + sum[i][v][j] : sum[i][v][j];
        }
      }
    }
  }
}

template <typename T, int rows>
struct MultiplyRows {
  static void Run(int wanted, int columns, int depth,
                  const LeftOperand<T>& left, const T* panel, T* c,
                  ptrdiff_t c_row, const Start<T>& start) {
    if (wanted < rows) {
      MultiplyRows<T, rows - 1>::Run(wanted, columns, depth, left, panel, c,
                                     c_row, start);
    } else if (columns <= Lanes<T>()) {
      Multiply<T, rows, 1>(columns, depth, left, panel, c, c_row, start);
    } else {
      Multiply<T, rows, 2>(columns, depth, left, panel, c, c_row, start);
    }
  }
};

template <typename T>
struct MultiplyRows<T, 0> {
  static void Run(int, int, int, const LeftOperand<T>&, const T*, T*, ptrdiff_t,
                  const Start<T>&) {}
};

// 4 `fours` rows times a vector. Rows are short, and the weights of a draw come
// from memory: what the next call reads is asked for ahead.
template <typename T, int fours>
void MultiplyVectorRows(int depth, const T* a, ptrdiff_t a_row, const T* x,
                        const T* bias, T* y) {
  typedef typename VectorOf<T, 4>::type Vector;
  const int kStep = 64 / sizeof(T);
  Vector sum[fours];
#pragma GCC unroll 4
  for (int f = 0; f < fours; ++f) {
    sum[f] = bias ? Load<4>(bias + 4 * f) : Vector{};
  }
  int k = 0;
  for (; k + 4 <= depth; k += 4) {
    if (k % kStep == 0) {
      for (int i = 4 * fours; i < 8 * fours; ++i) {
        __builtin_prefetch(a + i * a_row + k);
      }
    }
#pragma GCC unroll 4
    for (int f = 0; f < fours; ++f) {
      Vector column[4];
      LoadColumns(a + 4 * f * a_row + k, a_row, column);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[f] += Broadcast<4>(x[k + j]) * column[j];
    }
  }
  for (; k < depth; ++k) {
    for (int f = 0; f < fours; ++f) {
      const T* from = a + 4 * f * a_row + k;
      const Vector column = {from[0], from[a_row], from[2 * a_row],
                             from[3 * a_row]};
      sum[f] += Broadcast<4>(x[k]) * column;
    }
  }
  for (int f = 0; f < fours; ++f) Store<4>(y + 4 * f, sum[f]);
}

template <typename T>
void MultiplyVector(int rows, int depth, const T* a, ptrdiff_t a_row,
                    const T* x, const T* bias, T* y) {
  const int kFours = 4;
  int i = 0;
  for (; i + 4 * kFours <= rows; i += 4 * kFours) {
    MultiplyVectorRows<T, kFours>(depth, a + i * a_row, a_row, x,
                                  bias ? bias + i : nullptr, y + i);
  }
  while (i < rows) {
    // The last four may begin within those before.
    if (i + 4 > rows) i = rows - 4;
    MultiplyVectorRows<T, 1>(depth, a + i * a_row, a_row, x,
                             bias ? bias + i : nullptr, y + i);
    i += 4;
  }
}
