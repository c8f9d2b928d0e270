#ifndef SIMULATED_CUDA_CUDA_H_
#define SIMULATED_CUDA_CUDA_H_

// All that Caffe uses of CUDA's driver interface.
#define CUDA_VERSION 13000

#endif  // SIMULATED_CUDA_CUDA_H_
