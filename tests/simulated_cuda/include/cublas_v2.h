#ifndef SIMULATED_CUDA_CUBLAS_V2_H_
#define SIMULATED_CUDA_CUBLAS_V2_H_

#include "driver_types.h"

// The part of cuBLAS that Caffe uses. Matrices are column-major; scalars, also
// the results of dot and asum, are in the host's memory.

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH = 8,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16,
};

enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };

typedef struct SimulatedCublas* cublasHandle_t;

cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream);

#define SIMULATED_CUBLAS(letter, T)                                            \
  cublasStatus_t cublas##letter##gemm(                                         \
      cublasHandle_t handle, cublasOperation_t trans_a,                        \
      cublasOperation_t trans_b, int m, int n, int k, const T* alpha,          \
      const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc); \
  cublasStatus_t cublas##letter##gemv(                                         \
      cublasHandle_t handle, cublasOperation_t trans, int m, int n,            \
      const T* alpha, const T* a, int lda, const T* x, int incx,               \
      const T* beta, T* y, int incy);                                          \
  cublasStatus_t cublas##letter##axpy(cublasHandle_t handle, int n,            \
                                      const T* alpha, const T* x, int incx,    \
                                      T* y, int incy);                         \
  cublasStatus_t cublas##letter##scal(cublasHandle_t handle, int n,            \
                                      const T* alpha, T* x, int incx);         \
  cublasStatus_t cublas##letter##copy(cublasHandle_t handle, int n,            \
                                      const T* x, int incx, T* y, int incy);   \
  cublasStatus_t cublas##letter##dot(cublasHandle_t handle, int n, const T* x, \
                                     int incx, const T* y, int incy,           \
                                     T* result);                               \
  cublasStatus_t cublas##letter##asum(cublasHandle_t handle, int n,            \
                                      const T* x, int incx, T* result);

SIMULATED_CUBLAS(S, float)
SIMULATED_CUBLAS(D, double)
#undef SIMULATED_CUBLAS

#endif  // SIMULATED_CUDA_CUBLAS_V2_H_
