#ifndef SIMULATED_CUDA_CURAND_H_
#define SIMULATED_CUDA_CURAND_H_

#include <cstddef>

// The part of cuRAND that Caffe uses. The numbers are not those of cuRAND.

enum curandStatus_t {
  CURAND_STATUS_SUCCESS = 0,
  CURAND_STATUS_VERSION_MISMATCH = 100,
  CURAND_STATUS_NOT_INITIALIZED = 101,
  CURAND_STATUS_ALLOCATION_FAILED = 102,
  CURAND_STATUS_TYPE_ERROR = 103,
  CURAND_STATUS_OUT_OF_RANGE = 104,
  CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105,
  CURAND_STATUS_DOUBLE_PRECISION_REQUIRED = 106,
  CURAND_STATUS_LAUNCH_FAILURE = 201,
  CURAND_STATUS_PREEXISTING_FAILURE = 202,
  CURAND_STATUS_INITIALIZATION_FAILED = 203,
  CURAND_STATUS_ARCH_MISMATCH = 204,
  CURAND_STATUS_INTERNAL_ERROR = 999,
};

enum curandRngType_t { CURAND_RNG_PSEUDO_DEFAULT = 100 };

typedef struct SimulatedCurand* curandGenerator_t;

curandStatus_t curandCreateGenerator(curandGenerator_t* generator,
                                     curandRngType_t type);
curandStatus_t curandDestroyGenerator(curandGenerator_t generator);
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                  unsigned long long seed);
curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator,
                                        unsigned long long offset);
curandStatus_t curandGenerate(curandGenerator_t generator, unsigned int* out,
                              size_t count);
// In (0, 1].
curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out,
                                     size_t count);
curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator,
                                           double* out, size_t count);
// The count must be even, as cuRAND wants it.
curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* out,
                                    size_t count, float mean, float stddev);
curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator,
                                          double* out, size_t count,
                                          double mean, double stddev);

#endif  // SIMULATED_CUDA_CURAND_H_
