#ifndef CAFFE_ENGINE_KERNELS_HPP_
#define CAFFE_ENGINE_KERNELS_HPP_

// The innermost loops of the engine, compiled for each instruction set of
// machine.hpp.
//
// Everything that multiplies does so through one of them, Kernels::multiply,
// whose right operand is a panel: panel_columns columns of a matrix, used or
// not, one row after the other. (A single column would leave most of a panel
// unused, and has multiply_vector.) A product sums over its depth in ascending
// order, in one accumulator for each element. So its bits do not depend on how
// the work was divided.

#include <cstddef>

#include "caffe/engine/windows.hpp"

namespace caffe {
namespace engine {

/// A run of consecutive numbers to copy: panel[at + j] = source[from + j *
/// step] for 0 <= j < length.
struct Piece {
  int from, at, length, step;
};

/// The left operand of a product: element (i, k) is data[i * row + k * column].
/// If `run` is not 0, the columns come in runs of that many, each of which
/// begins `run_distance` after the one before.
template <typename T>
struct LeftOperand {
  const T* data;
  ptrdiff_t row, column;
  int run = 0;
  ptrdiff_t run_distance = 0;
};

/// What an element of a product starts from.
template <typename T>
struct Start {
  const T* row_bias = nullptr;  // one number for each row, or null
  bool add = false;             // whether to add to what is there
};

/// The numbers of an LRN layer.
template <typename T>
struct Normalization {
  int size;  // how many channels are summed up
  T alpha, beta, k;
};

/// A function f of each number by itself, with a parameter p. Arrays may be the
/// same.
template <typename T>
struct Activation {
  /// y = f(x).
  void (*value)(int n, T p, const T* x, T* y);
  /// dx = dy f'(x), where y is f(x).
  void (*gradient)(int n, T p, const T* x, const T* y, const T* dy, T* dx);
};

/// (x - shift) factor + bias, with one number of each for each row, or null for
/// those that are not there.
template <typename T>
struct AffineMap {
  const T *shift, *factor, *bias;
};

/// The numbers of a solver's step: g = scale dw + decay w is the gradient, and
/// w -= step; dw = step is what follows from it and from the history h and v.
template <typename T>
struct SolverStep {
  T scale, decay, rate;
  T keep_h = 0, add_h = 0, keep_v = 0, add_v = 0, delta = 0;
};
/// Solvers with one history have any v.
template <typename T>
using SolverUpdate = void (*)(int n, const SolverStep<T>& step, T* w, T* dw,
                              T* h, T* v);

template <typename T>
struct Kernels {
  const char* name;
  int block_rows;  // the most rows that `multiply` takes
  int panel_columns;

  /// c[i * c_row + j] = start + sum over k < depth of
  ///     a(i, k) panel[k * panel_columns + j]
  /// for 0 <= i < rows <= block_rows, 0 <= j < columns <= panel_columns.
  void (*multiply)(int rows, int columns, int depth, const LeftOperand<T>& a,
                   const T* panel, T* c, ptrdiff_t c_row,
                   const Start<T>& start);

  /// y[i] = bias[i] + sum over k < depth of a[i * a_row + k] x[k] for 0 <= i <
  /// rows: the numbers that `multiply` gives. bias may be null. For 4 rows or
  /// more.
  void (*multiply_vector)(int rows, int depth, const T* a, ptrdiff_t a_row,
                          const T* x, const T* bias, T* y);

  /// Fills the rows of a panel: row r with `pieces` of source + offset[r]. May
  /// read one vector beyond the last number asked for, and write one beyond the
  /// panel.
  void (*pack_pieces)(const T* source, const int* offset, int rows,
                      const Piece* pieces, int piece_count, T* panel);

  /// to[c * to_row + r] = from[r * from_row + c].
  void (*transpose)(int rows, int columns, const T* from, ptrdiff_t from_row,
                    T* to, ptrdiff_t to_row);

  /// to[r * to_row + c] = from[r * from_row + c].
  void (*copy)(int rows, int columns, const T* from, ptrdiff_t from_row, T* to,
               ptrdiff_t to_row);

  /// The reverse of pack_pieces: adds the panel to where it came from. Touches
  /// no more than was asked for.
  void (*add_pieces)(const T* panel, const int* offset, int rows,
                     const Piece* pieces, int piece_count, T* target);

  T (*sum)(int n, const T* x);

  /// even[i] = from[2 i], odd[i] = from[2 i + 1].
  void (*split_pairs)(int n, const T* from, T* even, T* odd);

  // The three transforms of winograd.hpp, of `n` channels or rows each.
  void (*winograd_weights)(int n, const T* kernel, T* out, ptrdiff_t stride);
  void (*winograd_input)(int n, const T* panel, T* out, ptrdiff_t stride);
  void (*winograd_output)(int n, const T* tiles, ptrdiff_t stride,
                          const T* bias, T* out);

  // Of depthwise.hpp.
  /// y[j] = bias + sum over k < taps of w[k] x[offset[k] + j] for 0 <= j < n.
  /// May read one vector beyond the last number asked for.
  void (*weighted_row)(int n, int taps, const int* offset, const T* w, T bias,
                       const T* x, T* y);
  /// sum[k] = the sum of dy[r * n + j] x[offset[k] + r * x_row + j] over all
  /// 0 <= r < rows and 0 <= j < n, for each k < taps.
  void (*products_of_rows)(int rows, int n, const T* dy, const T* x,
                           ptrdiff_t x_row, int taps, const int* offset,
                           T* sum);

  // Pooling of `planes` planes. `padded` has room for the padded planes of the
  // windows or, in average_pool_gradient, of windows.gradient().

  /// The largest number of each window, and its place in the plane.
  void (*max_pool)(const Windows& windows, int planes, const T* x, T* padded,
                   T* y, int* where);
  void (*max_pool_gradient)(const Windows& windows, int planes, const T* dy,
                            const int* where, T* dx);
  void (*average_pool)(const Windows& windows, int planes, const T* x,
                       T* padded, T* y);
  void (*average_pool_gradient)(const Windows& windows, int planes, const T* dy,
                                T* padded, T* dx);

  // LRN: see lrn.inl.
  void (*lrn_across)(const Normalization<T>& norm, int channels,
                     ptrdiff_t distance, int n, const T* x, T* scale, T* y,
                     T* scratch);
  void (*lrn_across_gradient)(const Normalization<T>& norm, int channels,
                              ptrdiff_t distance, int n, const T* x,
                              const T* scale, const T* y, const T* dy, T* dx,
                              T* scratch);
  void (*lrn_within)(const Normalization<T>& norm, int n, const T* x,
                     const T* average, T* y);
  void (*lrn_within_gradient)(const Normalization<T>& norm, int n, const T* x,
                              const T* average, const T* dy, T* daverage,
                              T* dx);

  Activation<T> relu;     // x > 0 ? x : p x; the gradient takes any y
  Activation<T> sigmoid;  // 1 / (1 + exp(-p x)); the gradient takes any x
  Activation<T> tanh;     // of x, whatever p is; the gradient takes any x
  Activation<T> elu;      // x > 0 ? x : p (exp(x) - 1)
  /// The mean and the variance of relu(x), where x is Gaussian with the mean m
  /// and the variance v. Results may be where m and v are.
  void (*relu_moments)(int n, T p, const T* m, const T* v, T* mean,
                       T* variance);
  /// The gradient by p of relu: the sum of dy x where x <= 0.
  T (*slope_gradient)(int n, const T* x, const T* dy);

  // Of `rows` rows of n numbers, one after the other. Results may be where x,
  // y or dy are.

  /// The mean and the variance of each row.
  void (*moments)(int rows, int n, const T* x, T* mean, T* variance);
  /// The sums of x and of x y over each row.
  void (*sums_and_products)(int rows, int n, const T* x, const T* y, T* sum,
                            T* product);
  void (*affine)(int rows, int n, const AffineMap<T>& map, const T* x, T* y);
  /// dx = (dy - mean - slope y) factor.
  void (*normalised_gradient)(int rows, int n, const T* mean, const T* slope,
                              const T* factor, const T* y, const T* dy, T* dx);

  /// Softmax over `channels` planes of n numbers each.
  void (*softmax)(int channels, int n, const T* x, T* y, T* scratch);

  // Steps of the solvers in one pass; see SolverStep.
  // h = keep_h h + rate g; step = h.
  SolverUpdate<T> momentum_update;
  // The same; step = (1 + keep_h) h - keep_h times what h was before.
  SolverUpdate<T> nesterov_update;
  // h = keep_h h + add_h g^2; step = rate g / (sqrt(h) + delta).
  SolverUpdate<T> root_mean_square_update;
  // h = keep_h h + add_h g; v = keep_v v + add_v g^2;
  // step = rate h / (sqrt(v) + delta).
  SolverUpdate<T> adam_update;
};

/// The fastest that this machine has.
template <typename T>
const Kernels<T>& BestKernels();

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_KERNELS_HPP_
