// Vectors of `lanes` numbers: loading, storing and rearranging them.

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

// The first `count` numbers of x.
template <int lanes, typename T>
inline void StoreSome(T* to, const typename VectorOf<T, lanes>::type& x,
                      int count) {
  if (count == lanes) return Store<lanes>(to, x);
  for (int j = 0; j < count; ++j) to[j] = x[j];
}

template <int lanes, typename T>
inline typename VectorOf<T, lanes>::type Broadcast(T x) {
  return x - typename VectorOf<T, lanes>::type{};
}

// 0, 1, 2 ...
template <typename Vector, int... i>
inline Vector Count(std::integer_sequence<int, i...>) {
  return Vector{i...};
}
template <typename Vector>
inline Vector Counted() {
  return Count<Vector>(
      std::make_integer_sequence<int, sizeof(Vector) / sizeof(Vector{}[0])>());
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

// Loops of so many bytes are whole vectors. The compiler computes what is left
// behind the last vector of a loop with other instructions: for AVX-512 it
// fuses there what it does not fuse in vectors. A function that must give the
// same bits wherever in an array a number is goes through such blocks.
constexpr int kBlockBytes = 256;

// y = f(x) for each of n numbers; y may be x.
template <typename T, typename Function>
inline void InBlocks(int n, const T* x, T* y, Function f) {
  constexpr int kBlock = kBlockBytes / sizeof(T);
  T block[kBlock] = {};
  for (int first = 0; first < n; first += kBlock) {
    const size_t bytes = std::min(kBlock, n - first) * sizeof(T);
    std::memcpy(block, x + first, bytes);
    for (int i = 0; i < kBlock; ++i) block[i] = f(block[i]);
    std::memcpy(y + first, block, bytes);
  }
}
