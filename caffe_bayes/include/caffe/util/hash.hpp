#ifndef CAFFE_UTIL_HASH_HPP_
#define CAFFE_UTIL_HASH_HPP_

#include <cstddef>
#include <cstdint>
#include <string>

namespace caffe {

/**
 * @brief The hash XXH64 of what is added bit by bit.
 *
 * It notices damage, not malice. It is as fast as memory, where SHA-256 would
 * take longer than the rest of a snapshot.
 */
class Hash {
 public:
  Hash();

  void Add(const void* data, size_t size);
  void Add(uint64_t number) { Add(&number, sizeof(number)); }
  /// Adds the length, too, so that texts do not run into each other.
  void Add(const std::string& text);
  /// The hash of all that was added.
  uint64_t Value() const;
  /// How many bytes were added.
  uint64_t size() const { return size_; }

 private:
  static constexpr size_t kStripe = 32;

  void AddStripe(const char* stripe);

  uint64_t lanes_[4];
  uint64_t size_ = 0;
  char rest_[kStripe];
};

}  // namespace caffe

#endif  // CAFFE_UTIL_HASH_HPP_
