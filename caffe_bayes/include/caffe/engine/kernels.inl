// The loops of kernels.hpp, for one instruction set: see targets.inl.

template <typename T, int lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(lanes * sizeof(T))));
  typedef type unaligned __attribute__((aligned(sizeof(T)), may_alias));
};

template <typename T>
constexpr int Lanes() {
  return ENGINE_VECTOR_BYTES / sizeof(T);
}

template <int lanes, typename T>
inline typename VectorOf<T, lanes>::type Load(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T, lanes>::unaligned*>(from);
}

template <int lanes, typename T>
inline void Store(T* to, const typename VectorOf<T, lanes>::type& x) {
  *reinterpret_cast<typename VectorOf<T, lanes>::unaligned*>(to) = x;
}

template <int lanes, typename T>
inline typename VectorOf<T, lanes>::type Broadcast(T x) {
  return x - typename VectorOf<T, lanes>::type{};
}

// The elements of a and b with the given indices, where b's follow a's. (GCC
// has clang's builtin only from version 12 on.)
template <int... index, typename Vector>
inline Vector Shuffle(const Vector& a, const Vector& b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, index...);
#else
  return __builtin_shuffle(a, b, decltype(a < b){index...});
#endif
}

// a[0] b[0] a[1] b[1] ...: first those of the lower halves of a and b.
template <typename Vector, int... i>
inline void Interleave(const Vector& a, const Vector& b, Vector* low,
                       Vector* high, std::integer_sequence<int, i...>) {
  const int lanes = sizeof...(i);
  *low = Shuffle<(i / 2 + i % 2 * lanes)...>(a, b);
  *high = Shuffle<(i / 2 + i % 2 * lanes + lanes / 2)...>(a, b);
}

// The reverse: the elements of low and high with even and with odd indices.
template <typename Vector, int... i>
inline void Separate(const Vector& low, const Vector& high, Vector* even,
                     Vector* odd, std::integer_sequence<int, i...>) {
  *even = Shuffle<(2 * i)...>(low, high);
  *odd = Shuffle<(2 * i + 1)...>(low, high);
}

// ---- Matrix products --------------------------------------------------------

template <typename T, int rows, int vectors>
void Multiply(int columns, int depth, const Left<T>& left, const T* panel, T* c,
              ptrdiff_t c_row, const Start<T>& start) {
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
  const T* stretch = left.data;
  for (int done = 0; done < depth;) {
    const T* a = stretch;
    const T* upper = a + 8 * row;
    const int end = left.stretch ? done + left.stretch : depth;
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
    stretch += left.jump;
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
  static void Run(int wanted, int columns, int depth, const Left<T>& left,
                  const T* panel, T* c, ptrdiff_t c_row,
                  const Start<T>& start) {
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
  static void Run(int, int, int, const Left<T>&, const T*, T*, ptrdiff_t,
                  const Start<T>&) {}
};

// ---- Moving numbers ---------------------------------------------------------

// Most vectors of a row for which the code below is straight.
const int kMostVectors = 8;

// What a vector of the image and one of the panel do to each other.
struct PackMove {
  template <int width, typename T>
  static void Vector(T* image, T* panel) {
    Store<width>(panel, Load<width>(image));
  }
  template <typename T>
  static void Number(T* image, T* panel) {
    *panel = *image;
  }
};
struct AddMove {
  template <int width, typename T>
  static void Vector(T* image, T* panel) {
    Store<width>(image, Load<width>(image) + Load<width>(panel));
  }
  template <typename T>
  static void Number(T* image, T* panel) {
    *image += *panel;
  }
};

// Pieces that are one vector each, so few of them that a row is straight code.
template <typename Move, typename T, int width, int count>
struct MoveVectors {
  static void Run(T* image, const int* offset, int rows, const Piece* pieces,
                  int wanted, T* panel) {
    if (wanted < count) {
      MoveVectors<Move, T, width, count - 1>::Run(image, offset, rows, pieces,
                                                  wanted, panel);
      return;
    }
    T* from[count];
    ptrdiff_t at[count];
    for (int p = 0; p < count; ++p) {
      from[p] = image + pieces[p].from;
      at[p] = pieces[p].at;
    }
    for (int r = 0; r < rows; ++r) {
      const ptrdiff_t row = offset[r];
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) {
        Move::template Vector<width>(from[p] + row, panel + at[p]);
      }
      panel += 2 * Lanes<T>();
    }
  }
};

template <typename Move, typename T, int width>
struct MoveVectors<Move, T, width, 0> {
  static void Run(T*, const int*, int, const Piece*, int, T*) {}
};

// Pieces of any length and step.
template <typename Move, typename T>
void MoveNumbers(T* image, const int* offset, int rows, const Piece* pieces,
                 int piece_count, T* panel) {
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < piece_count; ++p) {
      const Piece piece = pieces[p];
      T* from = image + offset[r] + piece.from;
      for (int j = 0; j < piece.length; ++j) {
        Move::Number(from + j * piece.step, panel + piece.at + j);
      }
    }
    panel += 2 * Lanes<T>();
  }
}

// Moves in the widest vectors of which the pieces consist; where a vector may
// go beyond the end of a piece (`loose`), of which they almost consist.
template <typename Move, bool loose, typename T>
void MovePieces(T* image, const int* offset, int rows, const Piece* pieces,
                int piece_count, T* panel) {
  const int lanes = Lanes<T>();
  int longest = 0, remainder = 0;
  bool unit_steps = true;
  for (int p = 0; p < piece_count; ++p) {
    if (pieces[p].length > longest) longest = pieces[p].length;
    remainder |= pieces[p].length % lanes;
    if (pieces[p].step != 1) unit_steps = false;
  }
  const bool halves = loose ? longest <= lanes / 2 : remainder != 0;
  const int width = halves ? lanes / 2 : lanes;
  Piece vectors[kMostVectors];
  int count = 0;
  bool whole = loose || remainder % width == 0;
  for (int p = 0; p < piece_count && unit_steps; ++p) {
    for (int j = 0; j < pieces[p].length; j += width) {
      if (count < kMostVectors) {
        vectors[count] = {pieces[p].from + j, pieces[p].at + j, width, 1};
      }
      ++count;
    }
  }
  if (!unit_steps || !whole || count > kMostVectors) {
    MoveNumbers<Move>(image, offset, rows, pieces, piece_count, panel);
  } else if (halves) {
    MoveVectors<Move, T, lanes / 2, kMostVectors>::Run(image, offset, rows,
                                                       vectors, count, panel);
  } else {
    MoveVectors<Move, T, lanes, kMostVectors>::Run(image, offset, rows, vectors,
                                                   count, panel);
  }
}

// A piece may write over the start of the next, which is written after it.
template <typename T>
void PackPieces(const T* source, const int* offset, int rows,
                const Piece* pieces, int piece_count, T* panel) {
  MovePieces<PackMove, true>(const_cast<T*>(source), offset, rows, pieces,
                             piece_count, panel);
}

template <typename T>
void AddPieces(const T* panel, const int* offset, int rows, const Piece* pieces,
               int piece_count, T* target) {
  MovePieces<AddMove, false>(target, offset, rows, pieces, piece_count,
                             const_cast<T*>(panel));
}

// Copies width to 2 width numbers, by two vectors that may overlap.
template <int width, typename T>
inline void CopyTwo(const T* from, int n, T* to) {
  const auto first = Load<width>(from), last = Load<width>(from + n - width);
  Store<width>(to, first);
  Store<width>(to + n - width, last);
}

template <typename T>
void Copy(int rows, int columns, const T* from, ptrdiff_t from_row, T* to,
          ptrdiff_t to_row) {
  const int lanes = Lanes<T>();
  for (int r = 0; r < rows; ++r) {
    int c = 0;
    for (; c + 2 * lanes <= columns; c += lanes) {
      Store<lanes>(to + c, Load<lanes>(from + c));
    }
    const int left = columns - c;
    if (left >= lanes) {
      CopyTwo<lanes>(from + c, left, to + c);
    } else if (left >= lanes / 2) {
      CopyTwo<lanes / 2>(from + c, left, to + c);
    } else {
      for (; c < columns; ++c) to[c] = from[c];
    }
    from += from_row;
    to += to_row;
  }
}

// A square of 4 x 4 numbers, by exchanging halves of pairs of rows, twice.
template <typename T>
inline void TransposeSquare(const T* from, ptrdiff_t from_row, T* to,
                            ptrdiff_t to_row) {
  typedef typename VectorOf<T, 4>::type Vector;
  const Vector a = Load<4>(from), b = Load<4>(from + from_row),
               c = Load<4>(from + 2 * from_row),
               d = Load<4>(from + 3 * from_row);
  const Vector ab_low = Shuffle<0, 4, 1, 5>(a, b);
  const Vector ab_high = Shuffle<2, 6, 3, 7>(a, b);
  const Vector cd_low = Shuffle<0, 4, 1, 5>(c, d);
  const Vector cd_high = Shuffle<2, 6, 3, 7>(c, d);
  Store<4>(to, Shuffle<0, 1, 4, 5>(ab_low, cd_low));
  Store<4>(to + to_row, Shuffle<2, 3, 6, 7>(ab_low, cd_low));
  Store<4>(to + 2 * to_row, Shuffle<0, 1, 4, 5>(ab_high, cd_high));
  Store<4>(to + 3 * to_row, Shuffle<2, 3, 6, 7>(ab_high, cd_high));
}

template <typename T>
void Transpose(int rows, int columns, const T* from, ptrdiff_t from_row, T* to,
               ptrdiff_t to_row) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    int c = 0;
    for (; c + 4 <= columns; c += 4) {
      TransposeSquare(from + r * from_row + c, from_row, to + c * to_row + r,
                      to_row);
    }
    for (; c < columns; ++c) {
      for (int i = r; i < r + 4; ++i) {
        to[c * to_row + i] = from[i * from_row + c];
      }
    }
  }
  for (; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      to[c * to_row + r] = from[r * from_row + c];
    }
  }
}

// ---- Everything else --------------------------------------------------------

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

// The widest vectors that loops over pairs of numbers begin with; they go on
// with halves of them, down to 4.
template <typename T>
constexpr int PairLanes() {
  return Lanes<T>() < 4 ? 4 : Lanes<T>();
}

// The numbers at[0], at[2], at[4] ... and at[1], at[3], at[5] ...
template <int lanes, typename T>
inline void LoadPairs(const T* from, typename VectorOf<T, lanes>::type* even,
                      typename VectorOf<T, lanes>::type* odd) {
  Separate(Load<lanes>(from), Load<lanes>(from + lanes), even, odd,
           std::make_integer_sequence<int, lanes>());
}

template <int lanes, typename T>
inline void StorePairs(T* to, const typename VectorOf<T, lanes>::type& even,
                       const typename VectorOf<T, lanes>::type& odd) {
  typename VectorOf<T, lanes>::type low, high;
  Interleave(even, odd, &low, &high, std::make_integer_sequence<int, lanes>());
  Store<lanes>(to, low);
  Store<lanes>(to + lanes, high);
}

template <int lanes, typename T>
inline void SplitPairsBy(int n, const T* from, T* even, T* odd) {
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    typename VectorOf<T, lanes>::type first, second;
    LoadPairs<lanes>(from + 2 * i, &first, &second);
    Store<lanes>(even + i, first);
    Store<lanes>(odd + i, second);
  }
  if (lanes > 4) {
    SplitPairsBy<(lanes > 4 ? lanes / 2 : 4)>(n - i, from + 2 * i, even + i,
                                              odd + i);
    return;
  }
  for (; i < n; ++i) {
    even[i] = from[2 * i];
    odd[i] = from[2 * i + 1];
  }
}

template <typename T>
void SplitPairs(int n, const T* from, T* even, T* odd) {
  SplitPairsBy<PairLanes<T>()>(n, from, even, odd);
}

// ---- Winograd's convolution -------------------------------------------------

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

// ---- Pooling ----------------------------------------------------------------

// As many windows of 2 x 2 with stride 2 as `lanes` divides; then half of that.
template <int lanes, typename T>
inline void MaxPool2x2(const T* image, int width, int first, int n, T* top,
                       int* where) {
  typedef typename VectorOf<T, lanes>::type Vector;
  int at = 0;
  for (; at + lanes <= n; at += lanes) {
    const int corner = first + 2 * at;
    Vector x[4];
    LoadPairs<lanes>(image + corner, &x[0], &x[1]);
    LoadPairs<lanes>(image + corner + width, &x[2], &x[3]);
    typedef decltype(x[0] < x[1]) Index;
    Index offset, place;
    for (int j = 0; j < lanes; ++j) offset[j] = corner + 2 * j;
    Vector best = Broadcast<lanes>(static_cast<T>(-FLT_MAX));
    place = Index{} - 1;
    for (int i = 0; i < 4; ++i) {
      const Index larger = x[i] > best;
      best = larger ? x[i] : best;
      place = larger ? offset + (i % 2 + i / 2 * width) : place;
    }
    Store<lanes>(top + at, best);
    for (int j = 0; j < lanes; ++j) where[at + j] = place[j];
  }
  if (lanes > 4) {
    MaxPool2x2<(lanes > 4 ? lanes / 2 : 4)>(image, width, first + 2 * at,
                                            n - at, top + at, where + at);
  } else {
    MaxPoolAny(image, width, first + 2 * at, n - at, 2, 2, 2, top + at,
               where + at);
  }
}

// The reverse: four numbers for each window, of which one is not 0.
template <int lanes, typename T>
inline void MaxPool2x2Gradient(const T* dy, const int* where, int width,
                               int first, int n, T* dx) {
  typedef typename VectorOf<T, lanes>::type Vector;
  typedef typename VectorOf<int, lanes>::type Places;
  typedef decltype(Vector{} < Vector{}) Index;
  int at = 0;
  for (; at + lanes <= n; at += lanes) {
    const int corner = first + 2 * at;
    Index offset;
    for (int j = 0; j < lanes; ++j) offset[j] = corner + 2 * j;
    const Places places = Load<lanes>(where + at);
    const Index place = __builtin_convertvector(places, Index) - offset;
    const Vector gradient = Load<lanes>(dy + at), zero = {};
    for (int row = 0; row < 2; ++row) {
      const Vector even = place == row * width ? gradient : zero;
      const Vector odd = place == row * width + 1 ? gradient : zero;
      StorePairs<lanes>(dx + corner + row * width, even, odd);
    }
  }
  if (lanes > 4) {
    MaxPool2x2Gradient<(lanes > 4 ? lanes / 2 : 4)>(dy + at, where + at, width,
                                                    first + 2 * at, n - at, dx);
    return;
  }
  for (; at < n; ++at) {
    for (int i = 0; i < 4; ++i) {
      const int here = first + 2 * at + i / 2 * width + i % 2;
      dx[here] = where[at] == here ? dy[at] : T(0);
    }
  }
}

template <typename T>
void MaxPoolGradient(const T* dy, const int* where, int width, int first, int n,
                     T* dx) {
  MaxPool2x2Gradient<PairLanes<T>()>(dy, where, width, first, n, dx);
}

template <typename T>
void MaxPoolRow(const T* image, int width, int first, int n, int window_h,
                int window_w, int stride, T* top, int* where) {
  if (window_h == 2 && window_w == 2 && stride == 2) {
    MaxPool2x2<PairLanes<T>()>(image, width, first, n, top, where);
  } else {
    MaxPoolAny(image, width, first, n, window_h, window_w, stride, top, where);
  }
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

template <typename T>
const Kernels<T>& All() {
  static const Kernels<T> kernels = {
      ENGINE_TARGET,
      ENGINE_BLOCK_ROWS,
      2 * Lanes<T>(),
      MultiplyRows<T, ENGINE_BLOCK_ROWS>::Run,
      PackPieces<T>,
      Transpose<T>,
      Copy<T>,
      AddPieces<T>,
      Sum<T>,
      SplitPairs<T>,
      WinogradWeights<T>,
      WinogradInput<T>,
      WinogradOutput<T>,
      MaxPoolRow<T>,
      MaxPoolGradient<T>,
      Relu<T>,
      ReluGradient<T>,
      Softmax<T>,
      MomentumStep<T>,
  };
  return kernels;
}
