#ifndef CAFFE_ENGINE_KERNELS_HPP_
#define CAFFE_ENGINE_KERNELS_HPP_

// The innermost loops of the engine, compiled for each instruction set of
// machine.hpp.
//
// Everything that multiplies does so through one of them, Kernels::multiply,
// whose right operand is a panel: panel_columns columns of a matrix, used or
// not, one row after the other. A product sums over its depth in ascending
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

  void (*relu)(int n, T slope, const T* x, T* y);
  void (*relu_gradient)(int n, T slope, const T* x, const T* dy, T* dx);

  /// Softmax over `channels` planes of n numbers each.
  void (*softmax)(int channels, int n, const T* x, T* y, T* scratch);

  /// One step of gradient descent with momentum, in one pass:
  /// g = scale dw + decay w;  h = momentum h + rate g;  dw = h;  w -= h.
  void (*momentum_step)(int n, T scale, T decay, T rate, T momentum, T* w,
                        T* dw, T* h);
};

/// The fastest that this machine has.
template <typename T>
const Kernels<T>& BestKernels();

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_KERNELS_HPP_
