#ifndef CAFFE_ENGINE_SCRATCH_HPP_
#define CAFFE_ENGINE_SCRATCH_HPP_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace caffe {
namespace engine {

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
      data_ = nullptr;
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

/**
 * @brief Memory for `size` numbers of any value, while the object lives, and a
 * vector more that may be overwritten. For local variables only.
 *
 * Each thread keeps its buffers as a stack: the n-th Scratch that is alive in a
 * thread has the n-th buffer. So two that are alive never share one, and
 * nothing is allocated when the same work is done again.
 */
template <typename T>
class Scratch {
 public:
  explicit Scratch(size_t size) {
    Stack& stack = ThisThreads();
    if (stack.used == stack.buffers.size()) {
      stack.buffers.emplace_back(new Buffer<T>);
    }
    data_ = stack.buffers[stack.used]->Get(size);
    ++stack.used;
  }
  ~Scratch() { --ThisThreads().used; }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  operator T*() const { return data_; }

 private:
  struct Stack {
    std::vector<std::unique_ptr<Buffer<T> > > buffers;
    size_t used = 0;
  };
  static Stack& ThisThreads() {
    static thread_local Stack stack;
    return stack;
  }

  T* data_;
};

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_SCRATCH_HPP_
