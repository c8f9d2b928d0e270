// Memory for the fuzz targets: an allocation that is too large fails as it does
// on a small machine. AddressSanitizer's operator new would end the process.
// run.sh has the same limit for malloc.

#include <cstdlib>
#include <new>

namespace {

const size_t kMostBytes = size_t{64} << 20;

void* AllocateOrNull(size_t bytes) noexcept {
  return bytes > kMostBytes ? nullptr : std::malloc(bytes ? bytes : 1);
}

void* Allocate(size_t bytes) {
  void* const memory = AllocateOrNull(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
