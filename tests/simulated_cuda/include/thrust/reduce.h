#ifndef SIMULATED_CUDA_THRUST_REDUCE_H_
#define SIMULATED_CUDA_THRUST_REDUCE_H_
// Caffe includes it and uses nothing of it.
#endif  // SIMULATED_CUDA_THRUST_REDUCE_H_
