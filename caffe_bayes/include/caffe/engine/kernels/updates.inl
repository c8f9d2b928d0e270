// Steps of the solvers, from the gradient g and the history of a weight.

template <typename T>
struct MomentumRule {
  static T Step(const SolverStep<T>& s, T g, T* h, T*) {
    return *h = s.keep_h * *h + s.rate * g;
  }
};

template <typename T>
struct NesterovRule {
  static T Step(const SolverStep<T>& s, T g, T* h, T*) {
    const T before = *h;
    *h = s.keep_h * before + s.rate * g;
    return (1 + s.keep_h) * *h - s.keep_h * before;
  }
};

template <typename T>
struct RootMeanSquareRule {
  static T Step(const SolverStep<T>& s, T g, T* h, T*) {
    *h = s.keep_h * *h + s.add_h * (g * g);
    return s.rate * g / (std::sqrt(*h) + s.delta);
  }
};

template <typename T>
struct AdamRule {
  static T Step(const SolverStep<T>& s, T g, T* h, T* v) {
    *h = s.keep_h * *h + s.add_h * g;
    *v = s.keep_v * *v + s.add_v * (g * g);
    return s.rate * *h / (std::sqrt(*v) + s.delta);
  }
};

template <template <typename> class Rule, typename T>
void Update(int n, const SolverStep<T>& parameters, T* w, T* dw, T* h, T* v) {
  const SolverStep<T> s = parameters;  // which no array overlaps
  for (int i = 0; i < n; ++i) {
    const T step =
        Rule<T>::Step(s, s.scale * dw[i] + s.decay * w[i], h + i, v + i);
    dw[i] = step;
    w[i] -= step;
  }
}
