#ifndef CAFFE_BAYES_HOST_DEVICE_HPP_
#define CAFFE_BAYES_HOST_DEVICE_HPP_

// A formula marked BAYES_HD is written once and called by the CPU's loops and
// by the kernels alike.

// Not <cmath>, whose exp without std:: takes float for double on the host,
// unless other headers came before; the device computes in float.
#include <math.h>

#ifdef __CUDACC__
#define BAYES_HD __host__ __device__ inline
#else
#define BAYES_HD inline
#endif

#endif  // CAFFE_BAYES_HOST_DEVICE_HPP_
