// Max pooling and its gradient.

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
