#include "caffe/engine/team.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "caffe/engine/cores.hpp"

namespace caffe {
namespace engine {

namespace {

const int kMostThreads = 256;

// How long a helper polls for the next job before it goes to sleep. The pauses
// between the layers of a net are shorter than this, and waking up takes longer
// than most of them.
const std::chrono::microseconds kPollingTime(200);

std::atomic<bool> is_forked_child(false);
thread_local bool inside_parallel_for = false;

inline void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

std::atomic<int>& Size() {
  static std::atomic<int> size(std::min(kMostThreads, DefaultThreads()));
  return size;
}

// Runs one job at a time: the thread that calls Run, which is member 0, and the
// helper threads, members 1, 2, ...
class Team {
 public:
  // Returns false, without doing anything, if another thread's job is running.
  bool Run(int n, int members, void (*work)(const void*, int),
           const void* context) {
    std::unique_lock<std::mutex> running(running_, std::try_to_lock);
    if (!running.owns_lock()) return false;
    StartHelpers(members - 1);
    work_ = work;
    context_ = context;
    members_ = members;
    for (int m = 0; m < members; ++m) {
      range_[m].next.store(static_cast<int64_t>(n) * m / members,
                           std::memory_order_relaxed);
      range_[m].end = static_cast<int64_t>(n) * (m + 1) / members;
    }
    failed_.store(false, std::memory_order_relaxed);
    joined_.store(kOpen, std::memory_order_release);
    jobs_.fetch_add(1);
    WakeHelpers();
    Work(0);
    CloseAndWait();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return true;
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };

  // Works on the member's own range, then on what is left of the others.
  void Work(int member) {
    inside_parallel_for = true;
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
    inside_parallel_for = false;
  }

  void StartHelpers(int wanted) {
    for (; helpers_ < wanted; ++helpers_) {
      std::thread(&Team::HelpForever, this, helpers_ + 1, jobs_.load())
          .detach();
    }
  }

  void WakeHelpers() {
    if (sleeping_.load() == 0) return;
    {
      // A helper that is about to sleep either sees the new job or is woken.
      std::lock_guard<std::mutex> lock(sleep_mutex_);
    }
    wake_.notify_all();
  }

  // No helper can join any more; waits for those that have.
  void CloseAndWait() {
    joined_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int i = 0; joined_.load(std::memory_order_acquire) != 0; ++i) {
      if (i < 1000) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void HelpForever(int member, uint64_t jobs_seen) {
    for (;;) {
      jobs_seen = WaitForJob(jobs_seen);
      if (Join()) {
        if (member < members_) Work(member);
        joined_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  uint64_t WaitForJob(uint64_t jobs_seen) {
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (jobs_.load() != jobs_seen) return jobs_.load();
        Pause();
      }
    } while (std::chrono::steady_clock::now() - start < kPollingTime);
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    ++sleeping_;
    wake_.wait(lock, [&] { return jobs_.load() != jobs_seen; });
    --sleeping_;
    return jobs_.load();
  }

  // Returns false if the job is over.
  bool Join() {
    uint32_t joined = joined_.load(std::memory_order_acquire);
    while (joined & kOpen) {
      if (joined_.compare_exchange_weak(joined, joined + 1,
                                        std::memory_order_acq_rel)) {
        return true;
      }
    }
    return false;
  }

  // Held by the thread whose job is running.
  std::mutex running_;
  int helpers_ = 0;
  // The job. Written only while no helper has joined and none can.
  void (*work_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  int members_ = 0;
  Range range_[kMostThreads];
  // The first exception. Read when all helpers have left.
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  // How many helpers have joined the job, and kOpen while more of them may.
  static const uint32_t kOpen = 1u << 31;
  std::atomic<uint32_t> joined_{0};
  // How many jobs there have been.
  std::atomic<uint64_t> jobs_{0};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

Team& TheTeam() {
  // Never deleted: the helpers use it until the process ends.
  static Team* team = new Team;
  return *team;
}

const int fork_is_noticed =
    pthread_atfork(nullptr, nullptr, [] { is_forked_child.store(true); });

}  // namespace

int TeamSize() {
  return inside_parallel_for || is_forked_child ? 1 : Size().load();
}

void SetTeamSize(int threads) {
  Size() = std::max(1, std::min(kMostThreads, threads));
}

void RunOnTeam(int n, void (*work)(const void* context, int i),
               const void* context) {
  const int members = std::min(n, TeamSize());
  if (members > 1 && TheTeam().Run(n, members, work, context)) return;
  for (int i = 0; i < n; ++i) work(context, i);
}

}  // namespace engine
}  // namespace caffe
