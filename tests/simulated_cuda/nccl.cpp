// NCCL by shared memory, among threads of one process and among processes of
// one machine.
#include "nccl.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device.hpp"

namespace simulated_cuda {
namespace {

/// What one rank shows to the others.
struct Share {
  int device;
  char what[64];  ///< must be the same for all ranks
  alignas(64) char bytes[1 << 16];
};

/// The ranks that work together. The memory that they share is all zeros when
/// the first one opens it.
class Group {
 public:
  /// @param name of the memory; others that give the same name share it
  Group(const std::string& name, int count) : name_(name), count_(count) {
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    const size_t size = sizeof(Meeting) + count * sizeof(Share);
    if (file < 0 || ftruncate(file, size) != 0) {
      Die("ncclComm: cannot share memory");
    }
    void* memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) Die("ncclComm: cannot share memory");
    meeting_ = static_cast<Meeting*>(memory);
    shares_ = reinterpret_cast<Share*>(meeting_ + 1);
  }
  ~Group() { munmap(meeting_, sizeof(Meeting) + count_ * sizeof(Share)); }

  /// Once all have opened the memory, it needs no name.
  void Forget() { shm_unlink(name_.c_str()); }

  int count() const { return count_; }
  Share& share(int rank) { return shares_[rank]; }

  /// Wait for all ranks.
  void Meet() {
    const int64_t this_meeting = meeting_->number;
    if (++meeting_->arrived == count_) {
      meeting_->arrived = 0;
      ++meeting_->number;
    } else {
      while (meeting_->number == this_meeting) sched_yield();
    }
  }

  /// False if two ranks have the same device.
  bool AllHaveDevices() const {
    for (int i = 0; i < count_; ++i) {
      for (int j = 0; j < i; ++j) {
        if (shares_[i].device == shares_[j].device) return false;
      }
    }
    return true;
  }

  /// Dies unless all ranks make the same call.
  void CheckCall(int rank, const std::string& what) {
    snprintf(shares_[rank].what, sizeof(shares_[rank].what), "%s",
             what.c_str());
    Meet();
    for (int other = 0; other < count_; ++other) {
      if (shares_[other].what != what) {
        Die("rank " + std::to_string(rank) + " calls " + what + ", rank " +
            std::to_string(other) + " " + shares_[other].what);
      }
    }
    Meet();
  }

 private:
  struct alignas(64) Meeting {
    std::atomic<int> arrived;
    std::atomic<int64_t> number;
  };

  const std::string name_;
  const int count_;
  Meeting* meeting_;
  Share* shares_;
};

std::string NewName() {
  std::random_device random;
  char name[64];
  snprintf(name, sizeof(name), "/simulated_nccl_%d_%08x%08x", getpid(),
           random(), random());
  return name;
}

size_t SizeOf(ncclDataType_t type) { return type == ncclFloat ? 4 : 8; }

std::string Describe(const char* name, size_t count, ncclDataType_t type) {
  return std::string(name) + " of " + std::to_string(count) +
         (type == ncclFloat ? " floats" : " doubles");
}

/// In the order of ranks, so that the result is always the same.
template <typename T>
void Sum(Group* group, size_t bytes, void* to) {
  T* sum = static_cast<T*>(to);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    T total = 0;
    for (int rank = 0; rank < group->count(); ++rank) {
      total += reinterpret_cast<const T*>(group->share(rank).bytes)[i];
    }
    sum[i] = total;
  }
}

}  // namespace
}  // namespace simulated_cuda

using simulated_cuda::Group;
using simulated_cuda::Share;

struct SimulatedNcclRank {
  std::shared_ptr<Group> group;
  int rank;
  int device;
};

namespace {

/// Dies unless this thread may call for the rank.
void CheckDevice(const char* name, ncclComm_t comm) {
  if (comm->device == simulated_cuda::CurrentDevice()) return;
  simulated_cuda::Die(std::string(name) + ": rank " +
                      std::to_string(comm->rank) + " is on device " +
                      std::to_string(comm->device) +
                      ", but the current one is " +
                      std::to_string(simulated_cuda::CurrentDevice()));
}

void CountCall(const char* name) {
  simulated_cuda::Count([name](simulated_cuda::Counters* counters) {
    ++counters->library_calls[name];
  });
}

/// Shows `from` to the others piece by piece, and calls work(to, bytes) when
/// all have shown theirs.
template <typename Work>
void Exchange(ncclComm_t comm, const std::string& what, const void* from,
              void* to, size_t bytes, const Work& work) {
  Group* group = comm->group.get();
  group->CheckCall(comm->rank, what);
  for (size_t done = 0; done < bytes;) {
    char* shown = group->share(comm->rank).bytes;
    const size_t piece = std::min(bytes - done, sizeof(Share::bytes));
    memcpy(shown, static_cast<const char*>(from) + done, piece);
    group->Meet();
    work(static_cast<char*>(to) + done, piece);
    group->Meet();
    done += piece;
  }
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
  }
  return "unknown result";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof(*id));
  const std::string name = simulated_cuda::NewName();
  memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  const auto group = std::make_shared<Group>(simulated_cuda::NewName(), count);
  group->Forget();
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= simulated_cuda::DeviceCount()) {
      return ncclInvalidArgument;
    }
    group->share(rank).device = device;
  }
  if (!group->AllHaveDevices()) {
    simulated_cuda::Complain("ncclCommInitAll: two ranks on one device");
    return ncclInvalidUsage;
  }
  for (int rank = 0; rank < count; ++rank) {
    comms[rank] = new SimulatedNcclRank{group, rank, group->share(rank).device};
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int count, ncclUniqueId id,
                              int rank) {
  if (rank < 0 || rank >= count) return ncclInvalidArgument;
  const auto group = std::make_shared<Group>(id.internal, count);
  const int device = simulated_cuda::CurrentDevice();
  group->share(rank).device = device;
  group->CheckCall(rank, "ncclCommInitRank of " + std::to_string(count));
  if (rank == 0) group->Forget();
  if (!group->AllHaveDevices()) {
    simulated_cuda::Complain("ncclCommInitRank: two ranks on one device");
    return ncclInvalidUsage;
  }
  *comm = new SimulatedNcclRank{group, rank, device};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t) {
  if (root < 0 || root >= comm->group->count()) return ncclInvalidArgument;
  CheckDevice(__func__, comm);
  CountCall(__func__);
  const size_t bytes = count * simulated_cuda::SizeOf(type);
  simulated_cuda::Operation operation(__func__);
  operation.Open(data, bytes, 1);
  Exchange(comm, simulated_cuda::Describe(__func__, count, type), data, data,
           bytes, [&](void* to, size_t piece) {
             memcpy(to, comm->group->share(root).bytes, piece);
           });
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t) {
  if (operation != ncclSum) return ncclInvalidArgument;
  CheckDevice(__func__, comm);
  CountCall(__func__);
  const size_t bytes = count * simulated_cuda::SizeOf(type);
  simulated_cuda::Operation running(__func__);
  running.Open(from, bytes, 1);
  running.Open(to, bytes, 2);
  Exchange(comm, simulated_cuda::Describe(__func__, count, type), from, to,
           bytes, [&](void* sum, size_t piece) {
             if (type == ncclFloat) {
               simulated_cuda::Sum<float>(comm->group.get(), piece, sum);
             } else {
               simulated_cuda::Sum<double>(comm->group.get(), piece, sum);
             }
           });
  return ncclSuccess;
}
