// Copying numbers: packing panels, padding and transposing.

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

// The columns of a square of 4 x 4 numbers, by exchanging halves of pairs of
// rows, twice.
template <typename T>
inline void LoadColumns(const T* from, ptrdiff_t from_row,
                        typename VectorOf<T, 4>::type column[4]) {
  typedef typename VectorOf<T, 4>::type Vector;
  const Vector a = Load<4>(from), b = Load<4>(from + from_row),
               c = Load<4>(from + 2 * from_row),
               d = Load<4>(from + 3 * from_row);
  const Vector ab_low = Shuffle<0, 4, 1, 5>(a, b);
  const Vector ab_high = Shuffle<2, 6, 3, 7>(a, b);
  const Vector cd_low = Shuffle<0, 4, 1, 5>(c, d);
  const Vector cd_high = Shuffle<2, 6, 3, 7>(c, d);
  column[0] = Shuffle<0, 1, 4, 5>(ab_low, cd_low);
  column[1] = Shuffle<2, 3, 6, 7>(ab_low, cd_low);
  column[2] = Shuffle<0, 1, 4, 5>(ab_high, cd_high);
  column[3] = Shuffle<2, 3, 6, 7>(ab_high, cd_high);
}

template <typename T>
inline void TransposeSquare(const T* from, ptrdiff_t from_row, T* to,
                            ptrdiff_t to_row) {
  typename VectorOf<T, 4>::type column[4];
  LoadColumns(from, from_row, column);
  for (int c = 0; c < 4; ++c) Store<4>(to + c * to_row, column[c]);
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
