#ifndef CAFFE_ENGINE_TEAM_HPP_
#define CAFFE_ENGINE_TEAM_HPP_

// The engine's one team of threads, and the memory that each member works in.

#include <cstddef>
#include <cstdlib>

namespace caffe {
namespace engine {

/// How many threads a ParallelFor uses: OMP_NUM_THREADS, else one for each core
/// that this process may run on; 1 inside of a ParallelFor, and 1 in a process
/// that was forked from one with a team, whose threads did not come along.
int TeamSize();

/// Calls work(i) once for each i with 0 <= i < n, spread over the team. Which
/// thread gets which i is left to chance, so work(i) must not depend on it.
template <typename Work>
void ParallelFor(int n, const Work& work) {
#ifdef _OPENMP
  const int threads = TeamSize();
  if (n > 1 && threads > 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int i = 0; i < n; ++i) work(i);
    return;
  }
#endif
  for (int i = 0; i < n; ++i) work(i);
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
      const size_t bytes = (size * sizeof(T) / 64 + 2) * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (!data_) std::abort();
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
