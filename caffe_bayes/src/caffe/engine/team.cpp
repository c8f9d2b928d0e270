#include "caffe/engine/team.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace caffe {
namespace engine {

namespace {

const int kMostMembers = 256;

// How long a member looks out for work before it goes to sleep. The pauses
// between the layers of a net are shorter, and being woken takes longer.
const std::chrono::microseconds kLookOut(200);

std::atomic<bool> forked(false);
// Whether this thread is working for a team.
thread_local bool at_work = false;

inline void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

int InitialSize() {
  const char* said = std::getenv("OMP_NUM_THREADS");
  const int wanted = said ? std::atoi(said) : 0;
  const int cores = std::thread::hardware_concurrency();
  return std::max(1, std::min(kMostMembers, wanted > 0 ? wanted : cores));
}

std::atomic<int>& Size() {
  static std::atomic<int> size(InitialSize());
  return size;
}

class Team {
 public:
  // Does the job, or says that another thread's job is being done.
  bool Run(int n, int members, void (*work)(const void*, int),
           const void* context) {
    std::unique_lock<std::mutex> only(one_job_, std::try_to_lock);
    if (!only.owns_lock()) return false;
    Hire(members - 1);
    work_ = work;
    context_ = context;
    members_ = members;
    for (int m = 0; m < members; ++m) {
      range_[m].next.store(static_cast<int64_t>(n) * m / members,
                           std::memory_order_relaxed);
      range_[m].end = static_cast<int64_t>(n) * (m + 1) / members;
    }
    failed_.store(false, std::memory_order_relaxed);
    door_.store(kOpen, std::memory_order_release);
    job_.fetch_add(1);
    if (sleepers_.load() > 0) {
      {
        std::lock_guard<std::mutex> lock(bedroom_);
      }
      wake_.notify_all();
    }
    Work(0);
    // Nobody else may come in; wait for those who are.
    door_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int i = 0; door_.load(std::memory_order_acquire) != 0; ++i) {
      if (i < 1000) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return true;
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };

  void Work(int member) {
    at_work = true;
    try {
      for (int turn = 0; turn < members_; ++turn) {
        Range& range = range_[(member + turn) % members_];
        while (!failed_.load(std::memory_order_relaxed)) {
          const int64_t i = range.next.fetch_add(1, std::memory_order_relaxed);
          if (i >= range.end) break;
          work_(context_, static_cast<int>(i));
        }
      }
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    at_work = false;
  }

  void Hire(int helpers) {
    for (; helpers_ < helpers; ++helpers_) {
      std::thread(&Team::Help, this, helpers_ + 1, job_.load()).detach();
    }
  }

  void Help(int member, uint64_t seen) {
    for (;;) {
      seen = WaitForJob(seen);
      if (Enter()) {
        if (member < members_) Work(member);
        door_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  uint64_t WaitForJob(uint64_t seen) {
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (job_.load() != seen) return job_.load();
        Pause();
      }
    } while (std::chrono::steady_clock::now() - start < kLookOut);
    std::unique_lock<std::mutex> lock(bedroom_);
    ++sleepers_;
    wake_.wait(lock, [&] { return job_.load() != seen; });
    --sleepers_;
    return job_.load();
  }

  bool Enter() {
    uint32_t door = door_.load(std::memory_order_acquire);
    while (door & kOpen) {
      if (door_.compare_exchange_weak(door, door + 1,
                                      std::memory_order_acq_rel)) {
        return true;
      }
    }
    return false;
  }

  // Set while a job may be entered; the rest counts those who are inside.
  static const uint32_t kOpen = 1u << 31;

  std::mutex one_job_;
  int helpers_ = 0;
  // The job. Written while the door is closed and nobody is inside.
  void (*work_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  int members_ = 0;
  Range range_[kMostMembers];
  // What was thrown first. Read when nobody is inside any more.
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::atomic<uint32_t> door_{0};
  // How many jobs there have been.
  std::atomic<uint64_t> job_{0};

  std::mutex bedroom_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

Team& TheTeam() {
  // Never deleted: its members sleep in it until the process ends.
  static Team* team = new Team;
  return *team;
}

const int watch_fork =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

}  // namespace

int TeamSize() { return at_work || forked ? 1 : Size().load(); }

void SetTeamSize(int threads) {
  Size() = std::max(1, std::min(kMostMembers, threads));
}

void RunOnTeam(int n, void (*work)(const void* context, int i),
               const void* context) {
  const int members = std::min(n, TeamSize());
  if (members > 1 && TheTeam().Run(n, members, work, context)) return;
  for (int i = 0; i < n; ++i) work(context, i);
}

}  // namespace engine
}  // namespace caffe
