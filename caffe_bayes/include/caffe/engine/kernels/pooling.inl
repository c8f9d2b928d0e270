// Pooling: a row of windows at a time, in vectors of windows side by side. The
// numbers of a window are taken row by row, as Caffe takes them.

// A row of n windows of height x width numbers, `stride` apart.
template <typename T>
struct WindowRow {
  const T* data;    // the first number of the first window
  ptrdiff_t pitch;  // from a row of numbers to the next
  int n, height, width, stride;
  // The place of the first number in its plane, whose rows may be shorter.
  int place, plane_width;
};

// What becomes of a plane's windows.
template <typename T>
struct Pooled {
  T* value;
  int* where;
};

// The largest numbers of `lanes` windows, and their places, counted from the
// first numbers of the windows; -1 if a window has none above -FLT_MAX.
template <int lanes, typename T>
struct Largest {
  typedef typename VectorOf<T, lanes>::type Vector;
  typedef decltype(Vector{} < Vector{}) Places;

  Vector value;
  Places place;

  Largest()
      : value(Broadcast<lanes>(static_cast<T>(-FLT_MAX))),
        place(Places{} - 1) {}
  void Take(const Vector& x, int at) {
    const Places larger = x > value;
    value = larger ? x : value;
    place = larger ? Places{} + at : place;
  }
  // As the windows from `at` on, `count` of them.
  void Write(const WindowRow<T>& row, int stride, int at, int count,
             const Pooled<T>& to) const {
    const Places first = Counted<Places>() * stride + row.place + at * stride;
    const Places found = place < 0 ? place : place + first;
    StoreSome<lanes>(to.value + at, value, count);
    StoreSome<lanes>(
        to.where + at,
        __builtin_convertvector(found, typename VectorOf<int, lanes>::type),
        count);
  }
};

// Their sums.
template <int lanes, typename T>
struct Total {
  typedef typename VectorOf<T, lanes>::type Vector;

  Vector value;

  Total() : value(Vector{}) {}
  void Take(const Vector& x, int) { value += x; }
  void Write(const WindowRow<T>&, int, int at, int count,
             const Pooled<T>& to) const {
    StoreSome<lanes>(to.value + at, value, count);
  }
};

// A row of at least `lanes` windows, each `stride` (1 or 2) behind the one
// before it and not narrower than that, so that all that is read is inside of
// them. The last two vectors may overlap. `size` is that of the windows if it
// is known to the compiler and not 0.
template <template <int, typename> class Method, int lanes, int stride,
          int size, typename T>
inline void PoolVectors(const WindowRow<T>& row, const Pooled<T>& to) {
  const int height = size ? size : row.height, width = size ? size : row.width;
  for (int at = 0;; at = std::min(at + lanes, row.n - lanes)) {
    Method<lanes, T> method;
#pragma GCC unroll 3
    for (int h = 0; h < height; ++h) {
      const T* from = row.data + h * row.pitch + at * stride;
      const int place = h * row.plane_width;
      if (stride == 1) {
#pragma GCC unroll 3
        for (int w = 0; w < width; ++w) {
          method.Take(Load<lanes>(from + w), place + w);
        }
        continue;
      }
      typename VectorOf<T, lanes>::type even, odd;
      int w = 0;
      for (; w + 2 <= width; w += 2) {
        LoadPairs<lanes>(from + w, &even, &odd);
        method.Take(even, place + w);
        method.Take(odd, place + w + 1);
      }
      if (w < width) {
        LoadPairs<lanes>(from + w - 1, &even, &odd);
        method.Take(odd, place + w);
      }
    }
    method.Write(row, stride, at, lanes, to);
    if (at + lanes == row.n) return;
  }
}

template <template <int, typename> class Method, int lanes, int stride,
          typename T>
inline void PoolSizes(const WindowRow<T>& row, const Pooled<T>& to) {
  if (row.height == 2 && row.width == 2) {
    PoolVectors<Method, lanes, stride, 2>(row, to);
  } else if (row.height == 3 && row.width == 3) {
    PoolVectors<Method, lanes, stride, 3>(row, to);
  } else {
    PoolVectors<Method, lanes, stride, 0>(row, to);
  }
}

// The rows that this does not fit: few windows, or far apart.
template <template <int, typename> class Method, typename T>
inline void PoolNumbers(const WindowRow<T>& row, const Pooled<T>& to) {
  const int lanes = 4;
  for (int at = 0; at < row.n; at += lanes) {
    Method<lanes, T> method;
    const int count = std::min(lanes, row.n - at);
    for (int h = 0; h < row.height; ++h) {
      for (int w = 0; w < row.width; ++w) {
        const T* from = row.data + h * row.pitch + w;
        typename VectorOf<T, lanes>::type x;
        for (int j = 0; j < lanes; ++j) {
          x[j] = from[(at + std::min(j, count - 1)) * row.stride];
        }
        method.Take(x, h * row.plane_width + w);
      }
    }
    method.Write(row, row.stride, at, count, to);
  }
}

// A row of windows, in the widest vectors that it fills.
template <template <int, typename> class Method, int lanes, typename T>
inline void PoolRow(const WindowRow<T>& row, const Pooled<T>& to) {
  if (row.n < lanes && lanes > 4) {
    PoolRow<Method, (lanes > 4 ? lanes / 2 : 4)>(row, to);
  } else if (row.n < lanes || row.stride > std::min(2, row.width)) {
    PoolNumbers<Method>(row, to);
  } else if (row.stride == 1) {
    PoolSizes<Method, lanes, 1>(row, to);
  } else {
    PoolSizes<Method, lanes, 2>(row, to);
  }
}

// All windows of a plane, of which `data` has all columns that they cover.
template <template <int, typename> class Method, typename T>
inline void PoolPlane(const Windows& windows, const T* data, ptrdiff_t pitch,
                      Pooled<T> to) {
  WindowRow<T> row;
  row.pitch = pitch;
  row.n = windows.output[1];
  row.width = windows.kernel[1];
  row.stride = windows.stride[1];
  row.plane_width = windows.input[1];
  for (int r = 0; r < windows.output[0]; ++r) {
    const int first = r * windows.stride[0] - windows.pad[0];
    const int inside = std::min(std::max(0, first), windows.input[0]);
    row.data = data + inside * pitch;
    row.height = std::min(first + windows.kernel[0], windows.input[0]) - inside;
    row.place = inside * windows.input[1] - windows.pad[1];
    PoolRow<Method, PairLanes<T>()>(row, to);
    to.value += row.n;
    if (to.where) to.where += row.n;
  }
}

// Copies planes into rows that are wide enough for the windows, and fills the
// rest of these.
template <typename T>
inline void PadPlanes(const Windows& windows, int planes, const T* x, T fill,
                      T* padded) {
  const ptrdiff_t pitch = windows.padded_width();
  const int rows = planes * windows.input[0], columns = windows.input[1];
  std::fill(padded, padded + rows * pitch, fill);
  for (int r = 0; r < rows; ++r) {
    T* to = padded + r * pitch + windows.pad[1];
    for (int c = 0; c < columns; ++c) to[c] = x[r * columns + c];
  }
}

template <template <int, typename> class Method, typename T>
inline void PoolPlanes(const Windows& windows, int planes, const T* x, T fill,
                       T* padded, Pooled<T> to) {
  ptrdiff_t pitch = windows.input[1];
  if (!windows.are_inside()) {
    PadPlanes(windows, planes, x, fill, padded);
    x = padded;
    pitch = windows.padded_width();
  }
  for (int plane = 0; plane < planes; ++plane) {
    PoolPlane<Method>(windows, x + plane * windows.input[0] * pitch, pitch, to);
    to.value += windows.output_size();
    if (to.where) to.where += windows.output_size();
  }
}

// The first of the largest of n numbers.
template <typename T>
inline void FindLargest(int n, const T* x, T* value, int* where) {
  const int lanes = Lanes<T>();
  Largest<lanes, T> largest;
  int i = 0;
  for (; i + lanes <= n; i += lanes) largest.Take(Load<lanes>(x + i), i);
  *value = -FLT_MAX;
  *where = -1;
  for (int j = 0; j < lanes; ++j) {
    const T found = largest.value[j];
    const int place = largest.place[j] + j;
    if (found > *value || (found == *value && place < *where)) {
      *value = found;
      *where = place;
    }
  }
  for (; i < n; ++i) {
    if (x[i] > *value) {
      *value = x[i];
      *where = i;
    }
  }
}

template <typename T>
void MaxPool(const Windows& windows, int planes, const T* x, T* padded, T* y,
             int* where) {
  if (!windows.is_plane()) {
    PoolPlanes<Largest>(windows, planes, x, static_cast<T>(-FLT_MAX), padded,
                        Pooled<T>{y, where});
    return;
  }
  const ptrdiff_t size = windows.input_size();
  for (int plane = 0; plane < planes; ++plane) {
    FindLargest(size, x + plane * size, y + plane, where + plane);
  }
}

// The gradient of the maxima of a row of windows of 2 x 2 with stride 2: four
// numbers for each window, of which one is not 0.
template <int lanes, typename T>
inline void MaxPool2x2Gradient(const T* dy, const int* where, int width,
                               int first, int n, T* dx) {
  typedef typename VectorOf<T, lanes>::type Vector;
  typedef typename VectorOf<int, lanes>::type Places;
  typedef decltype(Vector{} < Vector{}) Index;
  int at = 0;
  for (; at + lanes <= n; at += lanes) {
    const int corner = first + 2 * at;
    const Index offset = Counted<Index>() * 2 + corner;
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
void MaxPoolGradient(const Windows& windows, int planes, const T* dy,
                     const int* where, T* dx) {
  bool tiles = true;
  for (int axis = 0; axis < 2; ++axis) {
    tiles &= windows.kernel[axis] == 2 && windows.stride[axis] == 2 &&
             windows.pad[axis] == 0 &&
             windows.input[axis] == 2 * windows.output[axis];
  }
  const int width = windows.input[1];
  for (int plane = 0; plane < planes; ++plane) {
    if (tiles) {
      // Each number of the plane is set once.
      for (int r = 0; r < windows.output[0]; ++r) {
        const int at = r * windows.output[1];
        MaxPool2x2Gradient<PairLanes<T>()>(
            dy + at, where + at, width, 2 * r * width, windows.output[1], dx);
      }
    } else {
      std::fill(dx, dx + windows.input_size(), T(0));
      for (int i = 0; i < windows.output_size(); ++i) {
        // A window of NaN has no largest number.
        if (where[i] >= 0) dx[where[i]] += dy[i];
      }
    }
    dy += windows.output_size();
    where += windows.output_size();
    dx += windows.input_size();
  }
}

template <typename T>
void AveragePool(const Windows& windows, int planes, const T* x, T* padded,
                 T* y) {
  const ptrdiff_t size = windows.input_size();
  if (windows.is_plane()) {
    for (int plane = 0; plane < planes; ++plane) {
      y[plane] = Sum<T>(size, x + plane * size) / size;
    }
    return;
  }
  PoolPlanes<Total>(windows, planes, x, T(0), padded, Pooled<T>{y, nullptr});
  for (int r = 0; r < planes * windows.output[0]; ++r) {
    const int height = windows.extent(0, r % windows.output[0]);
    for (int c = 0; c < windows.output[1]; ++c) {
      y[c] /= height * windows.extent(1, c);
    }
    y += windows.output[1];
  }
}

// Each number of a plane gets its share of the gradients of its windows: their
// sum over a window again, of the gradients where the windows start.
template <typename T>
void AveragePoolGradient(const Windows& windows, int planes, const T* dy,
                         T* padded, T* dx) {
  const ptrdiff_t size = windows.input_size();
  if (windows.is_plane()) {
    for (int plane = 0; plane < planes; ++plane) {
      std::fill(dx + plane * size, dx + (plane + 1) * size, dy[plane] / size);
    }
    return;
  }
  const Windows back = windows.gradient();
  const ptrdiff_t pitch = back.padded_width();
  std::fill(padded, padded + planes * back.padded_size(), T(0));
  for (int plane = 0; plane < planes; ++plane) {
    T* first = padded + plane * back.padded_size() + back.pad[1];
    for (int r = 0; r < windows.output[0]; ++r) {
      T* to = first + r * windows.stride[0] * pitch;
      const int height = windows.extent(0, r);
      for (int c = 0; c < windows.output[1]; ++c) {
        to[c * windows.stride[1]] = dy[c] / (height * windows.extent(1, c));
      }
      dy += windows.output[1];
    }
  }
  for (int plane = 0; plane < planes; ++plane) {
    PoolPlane<Total>(back, padded + plane * back.padded_size(), pitch,
                     Pooled<T>{dx + plane * size, nullptr});
  }
}
