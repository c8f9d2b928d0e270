// Ranks by MPI. Part of the caffe tool and not of libcaffe, so that pycaffe
// needs no MPI.

#include "caffe/ranks/mpi_ranks.hpp"

#ifdef USE_MPI
// Open MPI's and MPICH's C++ interfaces, which the standard has dropped.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#endif

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "caffe/common.hpp"
#include "caffe/engine/cores.hpp"

namespace caffe {

namespace {

// How many processes an MPI launcher says it has started: Open MPI's, then
// those of MPICH and Slurm. 0 if there was no launcher.
int LaunchedRanks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* value = std::getenv(name);
    if (value) return std::atoi(value);
  }
  // Slurm also counts processes that have nothing to do with MPI.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return std::getenv("PMIX_RANK") && tasks ? std::atoi(tasks) : 0;
}

#ifdef USE_MPI

class MpiRanks : public Ranks {
 public:
  MpiRanks() {
    // Open MPI polls while it waits. On a core that others use as well, it then
    // takes their time: let it give way, unless the user says otherwise.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite*/ 0);
    // Only the main thread calls MPI.
    int provided;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &count_);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_,
                        MPI_INFO_NULL, &host_);
    MPI_Comm_rank(host_, &local_rank_);
    MPI_Comm_size(host_, &local_count_);
  }
  ~MpiRanks() override {
    MPI_Comm_free(&host_);
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  int local_rank() const override { return local_rank_; }
  int local_count() const override { return local_count_; }

  void StartSum(float* numbers, int n) override {
    Start(numbers, n, MPI_FLOAT);
  }
  void StartSum(double* numbers, int n) override {
    Start(numbers, n, MPI_DOUBLE);
  }
  void Wait() override {
    MPI_Waitall(sums_.size(), sums_.data(), MPI_STATUSES_IGNORE);
    sums_.clear();
  }
  void Progress() override {
    int done;
    MPI_Testall(sums_.size(), sums_.data(), &done, MPI_STATUSES_IGNORE);
    if (done) sums_.clear();
  }
  void Broadcast(void* bytes, size_t n) override {
    const size_t kMost = 1 << 30;
    char* at = static_cast<char*>(bytes);
    for (; n > 0; at += std::min(n, kMost), n -= std::min(n, kMost)) {
      MPI_Bcast(at, std::min(n, kMost), MPI_BYTE, 0, MPI_COMM_WORLD);
    }
  }
  int64_t Smallest(int64_t number) override {
    MPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_INT64_T, MPI_MIN,
                  MPI_COMM_WORLD);
    return number;
  }
  void Abort() override { MPI_Abort(MPI_COMM_WORLD, 1); }

  // How many ranks of this host may use cores that this one may use.
  int RanksOnTheseCores() const {
    cpu_set_t own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof(own), &own);
    std::vector<cpu_set_t> all(local_count_);
    MPI_Allgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own),
                  MPI_BYTE, host_);
    int sharing = 0;
    for (const cpu_set_t& other : all) {
      cpu_set_t common;
      CPU_AND(&common, &own, &other);
      sharing += CPU_COUNT(&common) > 0;
    }
    return std::max(1, sharing);
  }

 private:
  void Start(void* numbers, int n, MPI_Datatype type) {
    sums_.emplace_back();
    MPI_Iallreduce(MPI_IN_PLACE, numbers, n, type, MPI_SUM, MPI_COMM_WORLD,
                   &sums_.back());
  }

  int rank_ = 0;
  int count_ = 1;
  MPI_Comm host_;
  int local_rank_ = 0;
  int local_count_ = 1;
  std::vector<MPI_Request> sums_;
};

#endif  // USE_MPI

}  // namespace

std::unique_ptr<Ranks> JoinByMpi() {
  if (LaunchedRanks() == 0) return nullptr;
#ifdef USE_MPI
  std::unique_ptr<MpiRanks> ranks(new MpiRanks);
  engine::ShareCores(ranks->RanksOnTheseCores());
  // mpirun passes on SIGUSR1, and ends the ranks at SIGINT.
  std::signal(SIGUSR1, [](int) { std::raise(SIGINT); });
  // It sends SIGTERM to the ranks when one of them has died. That is no fault
  // of theirs, which glog would tell of.
  std::signal(SIGTERM, SIG_DFL);
  return ranks;
#else
  if (LaunchedRanks() == 1) return nullptr;
  throw Error("", 0,
              "this caffe was built without MPI, so mpirun cannot train with "
              "it; install Open MPI, and build caffe again (docs/mpi.md)");
#endif
}

}  // namespace caffe
