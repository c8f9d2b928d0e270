#ifndef CAFFE_ENGINE_TEAM_HPP_
#define CAFFE_ENGINE_TEAM_HPP_

// The engine's one team of threads, and the memory that each member works in.

#include <cstddef>
#include <cstdlib>
#include <new>

namespace caffe {
namespace engine {

/// How many threads a ParallelFor uses: what SetTeamSize said, else
/// OMP_NUM_THREADS, else one for each core that this process may run on. It is
/// 1 inside of a ParallelFor, and in a process that was forked, as threads do
/// not come along.
int TeamSize();

/// From the next ParallelFor on, up to 256.
void SetTeamSize(int threads);

/// Calls work(context, i) once for each i with 0 <= i < n. ParallelFor below is
/// its friendly form.
void RunOnTeam(int n, void (*work)(const void* context, int i),
               const void* context);

/**
 * @brief Calls work(i) once for each i with 0 <= i < n, spread over the team.
 *
 * A member has its own range of i, the same one each time for the same n, so
 * that it finds in its cache what it left there; then it helps the others. The
 * calling thread is a member, and does all of the work that nobody else has
 * begun: a machine that is busy otherwise makes this slower, but nobody waits
 * for a thread that does not get to run.
 *
 * What work throws comes out here, when everyone has stopped; no further i is
 * begun after it. If several throw, it is the first.
 */
template <typename Work>
void ParallelFor(int n, const Work& work) {
  RunOnTeam(
      n, [](const void* w, int i) { (*static_cast<const Work*>(w))(i); },
      &work);
}

/// Numbers that one thread takes at a time where there is no natural portion.
const int kPortion = 1 << 13;

inline int Portions(int n) { return (n + kPortion - 1) / kPortion; }

/// Calls work(portion, first, count) for the portions of n numbers, which are
/// the same for any number of threads.
template <typename Work>
void ParallelPortions(int n, const Work& work) {
  ParallelFor(Portions(n), [&](int portion) {
    const int first = portion * kPortion;
    work(portion, first, n - first < kPortion ? n - first : kPortion);
  });
}

/// Memory that grows as needed, aligned for vectors. Its content is lost when
/// it grows.
template <typename T>
class Buffer {
 public:
  Buffer() : data_(nullptr), size_(0) {}
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// At least `size` numbers, and a vector more that may be overwritten.
  T* Get(size_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = 0;
      const size_t bytes = (size * sizeof(T) / 64 + 2) * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (!data_) throw std::bad_alloc();
      for (size_t i = 0; i < bytes / sizeof(T); ++i) data_[i] = T();
      size_ = size;
    }
    return data_;
  }

 private:
  T* data_;
  size_t size_;
};

/// This thread's buffer number `slot`; it outlives the call.
template <typename T, int slot>
T* Scratch(size_t size) {
  static thread_local Buffer<T> buffer;
  return buffer.Get(size);
}

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_TEAM_HPP_
