#ifndef SIMULATED_CUDA_NCCL_H_
#define SIMULATED_CUDA_NCCL_H_

#include <cstddef>

#include "driver_types.h"

// The part of NCCL that Caffe uses, among threads and processes of one machine.
// A call returns when all ranks have made it and it is done.

#define NCCL_MAJOR 2
#define NCCL_UNIQUE_ID_BYTES 128

enum ncclResult_t {
  ncclSuccess = 0,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
};
enum ncclDataType_t { ncclFloat = 7, ncclDouble = 8 };
enum ncclRedOp_t { ncclSum = 0 };

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
typedef struct SimulatedNcclRank* ncclComm_t;

const char* ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int count, ncclUniqueId id,
                              int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream);

#endif  // SIMULATED_CUDA_NCCL_H_
