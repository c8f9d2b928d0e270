// NCCL by a meeting of threads.
#include "nccl.h"

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.hpp"

namespace simulated_cuda {
namespace {

/// What one rank brings to a meeting.
struct Share {
  std::string what;  ///< must be the same for all ranks
  const void* from;
  void* to;
};

/// The ranks that work together.
class Group {
 public:
  explicit Group(int count) : shares_(count), devices_(count, -1) {}

  int count() const { return static_cast<int>(shares_.size()); }

  /// False if another rank has the device.
  bool Join(int rank, int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int other : devices_) {
      if (other == device) return false;
    }
    devices_[rank] = device;
    return true;
  }

  /// Wait for all ranks; the last to come does the work for all.
  void Meet(int rank, const Share& share,
            const std::function<void(const std::vector<Share>&)>& work) {
    std::unique_lock<std::mutex> lock(mutex_);
    shares_[rank] = share;
    if (++arrived_ == count()) {
      for (int other = 0; other < count(); ++other) {
        if (shares_[other].what != share.what) {
          Die("rank " + std::to_string(rank) + " calls " + share.what +
              ", rank " + std::to_string(other) + " " + shares_[other].what);
        }
      }
      work(shares_);
      arrived_ = 0;
      ++meetings_;
      all_came_.notify_all();
    } else {
      const int64_t this_meeting = meetings_;
      all_came_.wait(lock, [&] { return meetings_ != this_meeting; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::vector<Share> shares_;
  std::vector<int> devices_;
  int arrived_ = 0;
  int64_t meetings_ = 0;
};

std::mutex groups_mutex;
int64_t next_id = 1;
std::map<int64_t, std::shared_ptr<Group>> groups;  // by unique id

size_t SizeOf(ncclDataType_t type) { return type == ncclFloat ? 4 : 8; }

std::string Describe(const char* name, size_t count, ncclDataType_t type) {
  return std::string(name) + " of " + std::to_string(count) +
         (type == ncclFloat ? " floats" : " doubles");
}

/// In the order of ranks, so that the result is always the same.
template <typename T>
void Sum(const std::vector<Share>& shares, size_t count) {
  std::vector<T> sum(count, T(0));
  for (const Share& share : shares) {
    const T* from = static_cast<const T*>(share.from);
    for (size_t i = 0; i < count; ++i) sum[i] += from[i];
  }
  for (const Share& share : shares) {
    memcpy(share.to, sum.data(), count * sizeof(T));
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
  const std::lock_guard<std::mutex> lock(simulated_cuda::groups_mutex);
  memset(id, 0, sizeof(*id));
  memcpy(id->internal, &simulated_cuda::next_id,
         sizeof(simulated_cuda::next_id));
  ++simulated_cuda::next_id;
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  const auto group = std::make_shared<Group>(count);
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= simulated_cuda::DeviceCount()) {
      return ncclInvalidArgument;
    }
    if (!group->Join(rank, device)) {
      simulated_cuda::Complain("ncclCommInitAll: two ranks on device " +
                               std::to_string(device));
      return ncclInvalidUsage;
    }
    comms[rank] = new SimulatedNcclRank{group, rank, device};
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int count, ncclUniqueId id,
                              int rank) {
  if (rank < 0 || rank >= count) return ncclInvalidArgument;
  int64_t key;
  memcpy(&key, id.internal, sizeof(key));
  std::shared_ptr<Group> group;
  {
    const std::lock_guard<std::mutex> lock(simulated_cuda::groups_mutex);
    std::shared_ptr<Group>& known = simulated_cuda::groups[key];
    if (!known) known = std::make_shared<Group>(count);
    group = known;
  }
  const int device = simulated_cuda::CurrentDevice();
  if (group->count() != count || !group->Join(rank, device)) {
    simulated_cuda::Complain("ncclCommInitRank: rank " + std::to_string(rank) +
                             " of " + std::to_string(count) + " on device " +
                             std::to_string(device) +
                             " does not fit to the others");
    return ncclInvalidUsage;
  }
  group->Meet(rank, Share{"ncclCommInitRank", nullptr, nullptr},
              [](const std::vector<Share>&) {});
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
  const Share share = {simulated_cuda::Describe(__func__, count, type), data,
                       data};
  comm->group->Meet(comm->rank, share, [&](const std::vector<Share>& shares) {
    for (const Share& other : shares) {
      if (other.to != shares[root].from) {
        memcpy(other.to, shares[root].from, bytes);
      }
    }
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
  const Share share = {simulated_cuda::Describe(__func__, count, type), from,
                       to};
  comm->group->Meet(comm->rank, share, [&](const std::vector<Share>& shares) {
    if (type == ncclFloat) {
      simulated_cuda::Sum<float>(shares, count);
    } else {
      simulated_cuda::Sum<double>(shares, count);
    }
  });
  return ncclSuccess;
}
