#ifndef BENCHMARKS_ONEDNN_HPP_
#define BENCHMARKS_ONEDNN_HPP_

// oneDNN's product and convolutions, as bench_product.cpp compares them with
// ours. Only where CMake found oneDNN.

#include <functional>

#include "caffe/engine/convolution.hpp"

namespace onednn {

/// Fields as of oneDNN's function; matrices are stored row by row.
void Sgemm(bool turn_a, bool turn_b, int m, int n, int k, const float* a,
           int lda, const float* b, int ldb, float beta, float* c, int ldc);

enum Direction { kForward, kInputGradient, kWeightGradient };

/// A convolution, made ready for the current number of threads. `x`, `w`, `y`
/// are blobs as Caffe's, or their gradients, of which the direction writes one.
struct Convolution {
  /// Computes from and to Caffe's layout.
  std::function<void()> run;
  /// Computes in the layout that oneDNN prefers, from what `run` left there.
  std::function<void()> run_in_own_layout;
};
Convolution MakeConvolution(const caffe::engine::ConvolutionShape& shape,
                            Direction direction, float* x, float* w,
                            float* bias, float* y);

}  // namespace onednn

#endif  // BENCHMARKS_ONEDNN_HPP_
