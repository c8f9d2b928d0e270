// cuBLAS by the host's BLAS.
extern "C" {
#include <cblas.h>
}

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cublas_v2.h"
#include "device.hpp"

struct SimulatedCublas {
  int device;
  cudaStream_t stream;
};

namespace simulated_cuda {
namespace {

/// One call of cuBLAS.
class Call {
 public:
  Call(const char* name, cublasHandle_t handle) : operation_(name) {
    if (handle == nullptr) Die(std::string(name) + ": the handle is null");
    if (handle->device != CurrentDevice()) {
      Die(std::string(name) + ": the handle was made for device " +
          std::to_string(handle->device) + ", but the current one is " +
          std::to_string(CurrentDevice()));
    }
    Count([name](Counters* counters) { ++counters->library_calls[name]; });
  }
  template <typename T>
  Call& Vector(const T* x, int n, int inc, int argument) {
    const size_t step = static_cast<size_t>(std::abs(inc));
    if (n > 0) operation_.Open(x, sizeof(T) * ((n - 1) * step + 1), argument);
    return *this;
  }
  template <typename T>
  Call& Matrix(const T* a, int rows, int columns, int ld, int argument) {
    if (rows > 0 && columns > 0) {
      const size_t last = static_cast<size_t>(columns - 1) * ld + rows;
      operation_.Open(a, sizeof(T) * last, argument);
    }
    return *this;
  }

 private:
  Operation operation_;
};

/// What cuBLAS says of a matrix of this many rows.
bool BadLeadingDimension(const char* name, const char* which, int ld,
                         int rows) {
  if (ld >= std::max(1, rows)) return false;
  Complain(std::string(name) + ": leading dimension " + std::to_string(ld) +
           " of " + which + " is less than its " + std::to_string(rows) +
           " rows");
  return true;
}

CBLAS_TRANSPOSE Transposed(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
}

}  // namespace
}  // namespace simulated_cuda

using simulated_cuda::BadLeadingDimension;
using simulated_cuda::Call;
using simulated_cuda::Transposed;

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (simulated_cuda::DeviceCount() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new SimulatedCublas{simulated_cuda::CurrentDevice(), nullptr};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

#define SIMULATED_CUBLAS(upper, lower, T)                                      \
  cublasStatus_t cublas##upper##gemm(                                          \
      cublasHandle_t handle, cublasOperation_t trans_a,                        \
      cublasOperation_t trans_b, int m, int n, int k, const T* alpha,          \
      const T* a, int lda, const T* b, int ldb, const T* beta, T* c,           \
      int ldc) {                                                               \
    const bool plain_a = trans_a == CUBLAS_OP_N;                               \
    const bool plain_b = trans_b == CUBLAS_OP_N;                               \
    const int rows_a = plain_a ? m : k, rows_b = plain_b ? k : n;              \
    if (BadLeadingDimension(__func__, "A", lda, rows_a) ||                     \
        BadLeadingDimension(__func__, "B", ldb, rows_b) ||                     \
        BadLeadingDimension(__func__, "C", ldc, m)) {                          \
      return CUBLAS_STATUS_INVALID_VALUE;                                      \
    }                                                                          \
    Call call(__func__, handle);                                               \
    call.Matrix(a, rows_a, plain_a ? k : m, lda, 8)                            \
        .Matrix(b, rows_b, plain_b ? n : k, ldb, 10)                           \
        .Matrix(c, m, n, ldc, 13);                                             \
    cblas_##lower##gemm(CblasColMajor, Transposed(trans_a),                    \
                        Transposed(trans_b), m, n, k, *alpha, a, lda, b, ldb,  \
                        *beta, c, ldc);                                        \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##gemv(                                          \
      cublasHandle_t handle, cublasOperation_t trans, int m, int n,            \
      const T* alpha, const T* a, int lda, const T* x, int incx,               \
      const T* beta, T* y, int incy) {                                         \
    if (BadLeadingDimension(__func__, "A", lda, m)) {                          \
      return CUBLAS_STATUS_INVALID_VALUE;                                      \
    }                                                                          \
    Call call(__func__, handle);                                               \
    call.Matrix(a, m, n, lda, 6)                                               \
        .Vector(x, trans == CUBLAS_OP_N ? n : m, incx, 8)                      \
        .Vector(y, trans == CUBLAS_OP_N ? m : n, incy, 11);                    \
    cblas_##lower##gemv(CblasColMajor, Transposed(trans), m, n, *alpha, a,     \
                        lda, x, incx, *beta, y, incy);                         \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##axpy(cublasHandle_t handle, int n,             \
                                     const T* alpha, const T* x, int incx,     \
                                     T* y, int incy) {                         \
    Call call(__func__, handle);                                               \
    call.Vector(x, n, incx, 4).Vector(y, n, incy, 6);                          \
    cblas_##lower##axpy(n, *alpha, x, incx, y, incy);                          \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##scal(cublasHandle_t handle, int n,             \
                                     const T* alpha, T* x, int incx) {         \
    Call call(__func__, handle);                                               \
    call.Vector(x, n, incx, 4);                                                \
    cblas_##lower##scal(n, *alpha, x, incx);                                   \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##copy(cublasHandle_t handle, int n, const T* x, \
                                     int incx, T* y, int incy) {               \
    Call call(__func__, handle);                                               \
    call.Vector(x, n, incx, 3).Vector(y, n, incy, 5);                          \
    cblas_##lower##copy(n, x, incx, y, incy);                                  \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##dot(cublasHandle_t handle, int n, const T* x,  \
                                    int incx, const T* y, int incy,            \
                                    T* result) {                               \
    Call call(__func__, handle);                                               \
    call.Vector(x, n, incx, 3).Vector(y, n, incy, 5);                          \
    *result = cblas_##lower##dot(n, x, incx, y, incy);                         \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }                                                                            \
  cublasStatus_t cublas##upper##asum(cublasHandle_t handle, int n, const T* x, \
                                     int incx, T* result) {                    \
    Call call(__func__, handle);                                               \
    call.Vector(x, n, incx, 3);                                                \
    *result = cblas_##lower##asum(n, x, incx);                                 \
    return CUBLAS_STATUS_SUCCESS;                                              \
  }

SIMULATED_CUBLAS(S, s, float)
SIMULATED_CUBLAS(D, d, double)
