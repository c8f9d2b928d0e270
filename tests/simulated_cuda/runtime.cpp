// Devices, streams and events of CUDA's runtime.
#include <chrono>
#include <cstdio>

#include "cuda_runtime.h"
#include "device.hpp"

struct SimulatedStream {};
struct SimulatedEvent {
  std::chrono::steady_clock::time_point time;
};

cudaError_t cudaGetDeviceCount(int* count) {
  *count = simulated_cuda::DeviceCount();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= simulated_cuda::DeviceCount()) {
    return cudaErrorInvalidDevice;
  }
  *properties = cudaDeviceProp();
  snprintf(properties->name, sizeof(properties->name), "Simulated device %d",
           device);
  properties->totalGlobalMem = size_t(8) << 30;
  properties->sharedMemPerBlock = 48 << 10;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7FFFFFFF;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = 7;
  properties->minor = 5;
  properties->multiProcessorCount = 1;
  properties->unifiedAddressing = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  if (device < 0 || device >= simulated_cuda::DeviceCount()) {
    return cudaErrorInvalidDevice;
  }
  *value = attribute == cudaDevAttrMultiProcessorCount;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = simulated_cuda::DeviceCount() > 0 ? 13000 : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
  }
  return "unknown error";
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  if (simulated_cuda::DeviceCount() == 0) return cudaErrorNoDevice;
  *stream = new SimulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  if (simulated_cuda::DeviceCount() == 0) return cudaErrorNoDevice;
  *event = new SimulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t stop) {
  *milliseconds =
      std::chrono::duration<float, std::milli>(stop->time - start->time)
          .count();
  return cudaSuccess;
}
