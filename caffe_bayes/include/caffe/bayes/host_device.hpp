#ifndef CAFFE_BAYES_HOST_DEVICE_HPP_
#define CAFFE_BAYES_HOST_DEVICE_HPP_

// A formula marked BAYES_HD is written once and called by the CPU's loops and
// by the kernels alike.

// Not <cmath>: without std:: it has only exp(double) and the like on the host,
// and on the device, or behind CUDA's headers, exp(float) too.
#include <math.h>

#ifdef __CUDACC__
#define BAYES_HD __host__ __device__ inline
#else
#define BAYES_HD inline
#endif

namespace caffe {
namespace bayes {

// What a formula means by exp: on the device that of its argument's precision,
// on the host that of double, whatever other headers declare.
#ifdef __CUDA_ARCH__
using ::exp;
using ::expm1;
using ::fabs;
using ::log;
using ::log1p;
using ::sqrt;
#else
BAYES_HD double exp(double x) { return std::exp(x); }
BAYES_HD double expm1(double x) { return std::expm1(x); }
BAYES_HD double fabs(double x) { return std::fabs(x); }
BAYES_HD double log(double x) { return std::log(x); }
BAYES_HD double log1p(double x) { return std::log1p(x); }
BAYES_HD double sqrt(double x) { return std::sqrt(x); }
#endif

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_HOST_DEVICE_HPP_
