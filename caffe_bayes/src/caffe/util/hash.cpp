#include "caffe/util/hash.hpp"

#include <algorithm>
#include <cstring>

namespace caffe {

namespace {

const uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f,
               kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63,
               kPrime5 = 0x27d4eb2f165667c5;

inline uint64_t Rotate(uint64_t x, int bits) {
  return x << bits | x >> (64 - bits);
}

inline uint64_t Round(uint64_t lane, uint64_t word) {
  return Rotate(lane + word * kPrime2, 31) * kPrime1;
}

template <typename Word>
inline Word Read(const char* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

}  // namespace

Hash::Hash() : lanes_{kPrime1 + kPrime2, kPrime2, 0, -kPrime1} {}

void Hash::AddStripe(const char* stripe) {
  for (int i = 0; i < 4; ++i) {
    lanes_[i] = Round(lanes_[i], Read<uint64_t>(stripe + 8 * i));
  }
}

void Hash::Add(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  const char* const end = next + size;
  const size_t filled = size_ % kStripe;
  size_ += size;
  if (filled > 0) {
    const size_t part = std::min(size, kStripe - filled);
    std::copy(next, next + part, rest_ + filled);
    next += part;
    if (filled + part < kStripe) return;
    AddStripe(rest_);
  }
  for (; end - next >= static_cast<ptrdiff_t>(kStripe); next += kStripe) {
    AddStripe(next);
  }
  std::copy(next, end, rest_);
}

void Hash::Add(const std::string& text) {
  Add(text.size());
  Add(text.data(), text.size());
}

uint64_t Hash::Value() const {
  uint64_t hash = kPrime5;
  if (size_ >= kStripe) {
    hash = Rotate(lanes_[0], 1) + Rotate(lanes_[1], 7) + Rotate(lanes_[2], 12) +
           Rotate(lanes_[3], 18);
    for (const uint64_t lane : lanes_) {
      hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
    }
  }
  hash += size_;
  const char* next = rest_;
  size_t left = size_ % kStripe;
  for (; left >= 8; left -= 8, next += 8) {
    hash ^= Round(0, Read<uint64_t>(next));
    hash = Rotate(hash, 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash ^= Read<uint32_t>(next) * kPrime1;
    hash = Rotate(hash, 23) * kPrime2 + kPrime3;
    left -= 4, next += 4;
  }
  for (; left > 0; --left, ++next) {
    hash ^= static_cast<uint8_t>(*next) * kPrime5;
    hash = Rotate(hash, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace caffe
