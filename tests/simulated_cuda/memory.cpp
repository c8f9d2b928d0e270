// Device memory, the errors that its protection finds, and the counters.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <ostream>
#include <set>
#include <sstream>
#include <string>

#include "device.hpp"
#include "device_code.hpp"

namespace simulated_cuda {
namespace {

const uintptr_t kPage = 4096;
// Addresses are never used twice, so that one of freed memory stays closed.
const uintptr_t kArenaSize = uintptr_t(1) << 43;
const uintptr_t kAlignment = 16;
// New memory and what surrounds it: as a float or a double not a number.
const int kGarbage = 0xFF;

/// Memory from cudaMalloc. It ends at a page's end, or fewer than kAlignment
/// bytes before, and a page that is never opened comes next.
struct Allocation {
  uintptr_t first_page;
  uintptr_t start;
  size_t size;
  int device;
  int users;  ///< operations that have it open

  uintptr_t end() const { return start + size; }
  uintptr_t last_page_end() const {
    return (end() + kPage - 1) / kPage * kPage;
  }
  size_t mapped() const { return last_page_end() - first_page; }
};

std::mutex mutex;  // of all that follows

uintptr_t arena = 0;
uintptr_t arena_used = 0;
std::map<uintptr_t, Allocation> allocations;  // by first page
std::set<void*> pinned;                       // from cudaMallocHost
Counters counters;
struct sigaction earlier_handler;

thread_local int current_device = 0;
// What this thread's device is doing; null: nothing.
__thread const char* running = nullptr;

/// The allocation that the address is in or right behind; null: none.
Allocation* Find(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  Allocation* allocation = &(--after)->second;
  const bool inside =
      address >= allocation->start && address <= allocation->end();
  return inside ? allocation : nullptr;
}

std::string Hex(uintptr_t address) {
  char text[32];
  snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(address));
  return text;
}

std::string Description(const Allocation& allocation) {
  return "the " + std::to_string(allocation.size) + " bytes at " +
         Hex(allocation.start) + " of device " +
         std::to_string(allocation.device);
}

std::string Describe(uintptr_t address) {
  if (address < arena || address >= arena + kArenaSize) {
    return "which is not device memory";
  }
  auto after = allocations.upper_bound(address);
  if (after != allocations.begin()) {
    const Allocation& last = (--after)->second;
    if (address >= last.end() && address < last.last_page_end() + kPage) {
      return std::to_string(address - last.end()) + " bytes past the end of " +
             Description(last);
    }
    if (address >= last.start && address < last.end()) {
      return "byte " + std::to_string(address - last.start) + " of " +
             Description(last);
    }
  }
  return "which is device memory that was freed, or never allocated";
}

/// Where in which kernel this thread is.
std::string Place() {
  if (running == nullptr) return "the host";
  std::string place = running;
  if (gridDim.x > 0) {
    place += ", block " + std::to_string(blockIdx.x) + ", thread " +
             std::to_string(threadIdx.x);
  }
  return place;
}

/// It is the end of the program, so locks and allocations do not matter.
void OnSegmentationFault(int signal, siginfo_t* info, void* context) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool in_arena = address >= arena && address < arena + kArenaSize;
  if (in_arena || running != nullptr) {
    Die(Place() + " used address " + Hex(address) + ", " + Describe(address));
  }
  sigaction(SIGSEGV, &earlier_handler, nullptr);  // it happens again, there
}

void ReserveArena() {
  if (arena != 0) return;
  void* reserved = mmap(nullptr, kArenaSize, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) Die("cannot reserve addresses for devices");
  arena = reinterpret_cast<uintptr_t>(reserved);
  struct sigaction handler = {};
  handler.sa_sigaction = OnSegmentationFault;
  handler.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &handler, &earlier_handler);
  if (getenv("SIMULATED_CUDA_COUNTERS") != nullptr) {
    atexit([] {
      std::ostringstream table;
      table << ReadCounters();
      fputs(table.str().c_str(), stderr);
    });
  }
}

void Protect(const Allocation& allocation, int protection) {
  if (mprotect(reinterpret_cast<void*>(allocation.first_page),
               allocation.mapped(), protection) != 0) {
    Die("mprotect failed for " + Description(allocation));
  }
}

/// For less than a page.
bool AllGarbage(uintptr_t from, uintptr_t to) {
  static const std::string garbage(kPage, static_cast<char>(kGarbage));
  return memcmp(reinterpret_cast<void*>(from), garbage.data(), to - from) == 0;
}

/// What protection of whole pages does not see.
void CheckSurroundings(const Allocation& allocation, const char* name) {
  if (!AllGarbage(allocation.first_page, allocation.start)) {
    Die(std::string(name) + " wrote before the start of " +
        Description(allocation));
  }
  if (!AllGarbage(allocation.end(), allocation.last_page_end())) {
    Die(std::string(name) + " wrote past the end of " +
        Description(allocation));
  }
}

/// Where memory is: the number of a device, or kHost.
const int kHost = -1;
int Owner(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex);
  const Allocation* allocation = Find(address);
  return allocation == nullptr ? kHost : allocation->device;
}

bool InArena(const void* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  return arena != 0 && address >= arena && address < arena + kArenaSize;
}

/// Null if that many bytes of one allocation, or of the host, are there.
std::string WhyBad(const void* pointer, size_t size) {
  if (pointer == nullptr) return "the pointer is null";
  if (!InArena(pointer)) return "";
  const std::lock_guard<std::mutex> lock(mutex);
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const Allocation* allocation = Find(address);
  if (allocation == nullptr) return Hex(address) + ", " + Describe(address);
  if (address + size <= allocation->end()) return "";
  return std::to_string(size) + " bytes at " + Hex(address) +
         " do not fit into " + Description(*allocation);
}

}  // namespace

void Die(const std::string& message) {
  const std::string line = "simulated CUDA: " + message + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(1);
  abort();
}

void Complain(const std::string& message) {
  fprintf(stderr, "simulated CUDA: %s\n", message.c_str());
}

int DeviceCount() {
  static const int count = [] {
    const char* setting = getenv("SIMULATED_CUDA_DEVICES");
    return setting == nullptr ? 2 : atoi(setting);
  }();
  return count;
}

int CurrentDevice() { return current_device; }

bool IsDeviceMemory(const void* address) { return Owner(address) != kHost; }

size_t AllocatedBytes(int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  size_t bytes = 0;
  for (const auto& entry : allocations) {
    if (entry.second.device == device) bytes += entry.second.size;
  }
  return bytes;
}

// ---- Operations -------------------------------------------------------------

namespace {

// Whether the host has a page there. What is not aligned is no pointer of ours.
bool IsHostMemory(uintptr_t address) {
  unsigned char resident;
  return address % 4 == 0 && !InArena(reinterpret_cast<void*>(address)) &&
         mincore(reinterpret_cast<void*>(address / kPage * kPage), 1,
                 &resident) == 0;
}

}  // namespace

Operation::Operation(const char* name) : outer_name_(running) {
  running = name;
}

Operation::~Operation() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (uintptr_t first_page : opened_) {
    Allocation* allocation = &allocations.at(first_page);
    if (--allocation->users > 0) continue;
    CheckSurroundings(*allocation, running);
    Protect(*allocation, PROT_NONE);
  }
  running = outer_name_;
}

void Operation::OpenAllocation(uintptr_t address, int argument) {
  const std::lock_guard<std::mutex> lock(mutex);
  Allocation* allocation = Find(address);
  const std::string which =
      argument == 0
          ? std::string(running)
          : std::string(running) + ": argument " + std::to_string(argument);
  if (allocation == nullptr) {
    Die(which + " is " + Hex(address) + ", " + Describe(address));
  }
  if (argument != 0 && allocation->device != current_device) {
    Die(which + " is memory of device " + std::to_string(allocation->device) +
        ", but the current one is " + std::to_string(current_device));
  }
  if (std::find(opened_.begin(), opened_.end(), allocation->first_page) !=
      opened_.end()) {
    return;
  }
  opened_.push_back(allocation->first_page);
  if (allocation->users++ == 0) Protect(*allocation, PROT_READ | PROT_WRITE);
}

void Operation::Open(const void* pointer, size_t bytes, int argument) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  OpenAllocation(address, argument);
  const std::string bad = WhyBad(pointer, bytes);
  if (!bad.empty()) {
    Die(std::string(running) + ": argument " + std::to_string(argument) + ": " +
        bad);
  }
}

void Operation::OpenIfSet(const void* pointer, int argument) {
  if (pointer == nullptr) return;
  OpenAllocation(reinterpret_cast<uintptr_t>(pointer), argument);
}

void Operation::OpenInside(const void* structure, size_t size, int argument) {
  const char* bytes = static_cast<const char*>(structure);
  for (size_t at = 0; at + sizeof(void*) <= size; at += sizeof(void*)) {
    uintptr_t word;
    memcpy(&word, bytes + at, sizeof(word));
    // It may be numbers.
    if (IsDeviceMemory(reinterpret_cast<void*>(word))) {
      OpenAllocation(word, argument);
    } else if (IsHostMemory(word)) {
      Die(std::string(running) + ": argument " + std::to_string(argument) +
          " has " + Hex(word) + " in it, which is memory of the host");
    }
  }
}

void Operation::OpenAnywhere(const void* pointer) {
  if (InArena(pointer)) {
    OpenAllocation(reinterpret_cast<uintptr_t>(pointer), 0);
  }
}

// ---- Counters ---------------------------------------------------------------

void Count(const std::function<void(Counters*)>& change) {
  const std::lock_guard<std::mutex> lock(mutex);
  change(&counters);
}

Counters ReadCounters() {
  const std::lock_guard<std::mutex> lock(mutex);
  return counters;
}

void ResetCounters() {
  const std::lock_guard<std::mutex> lock(mutex);
  counters = Counters();
}

int64_t Counters::TotalLaunches() const {
  int64_t total = 0;
  for (const auto& entry : launches) total += entry.second;
  return total;
}

std::ostream& operator<<(std::ostream& out, const Counters& counters) {
  const auto row = [&out](const std::string& name, int64_t calls) {
    out << name << std::string(name.size() < 40 ? 40 - name.size() : 1, ' ')
        << calls;
  };
  for (const auto& entry : counters.launches) {
    row("kernel " + entry.first, entry.second);
    out << "\n";
  }
  for (const auto& entry : counters.library_calls) {
    row(entry.first, entry.second);
    out << "\n";
  }
  const auto traffic = [&](const char* name, const Traffic& done) {
    row(name, done.calls);
    out << "  " << done.bytes << " bytes\n";
  };
  traffic("copies, host to device", counters.host_to_device);
  traffic("copies, device to host", counters.device_to_host);
  traffic("copies, device to device", counters.device_to_device);
  traffic("memsets", counters.memsets);
  return out;
}

}  // namespace simulated_cuda

// ---- The runtime's memory functions -----------------------------------------

using simulated_cuda::Complain;
using simulated_cuda::Operation;
using simulated_cuda::WhyBad;

cudaError_t cudaGetDevice(int* device) {
  if (simulated_cuda::DeviceCount() == 0) return cudaErrorNoDevice;
  *device = simulated_cuda::current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (simulated_cuda::DeviceCount() == 0) return cudaErrorNoDevice;
  if (device < 0 || device >= simulated_cuda::DeviceCount()) {
    return cudaErrorInvalidDevice;
  }
  simulated_cuda::current_device = device;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t size) {
  using namespace simulated_cuda;  // NOLINT
  if (DeviceCount() == 0) return cudaErrorNoDevice;
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(mutex);
  ReserveArena();
  Allocation made = {};
  made.first_page = arena + arena_used;
  made.size = size;
  made.device = current_device;
  const size_t aligned = (size + kAlignment - 1) / kAlignment * kAlignment;
  const size_t pages = (aligned + kPage - 1) / kPage * kPage;
  made.start = made.first_page + pages - aligned;
  if (pages + kPage > kArenaSize - arena_used) return cudaErrorMemoryAllocation;
  arena_used += pages + kPage;
  // An area with a property of its own is not merged with its neighbours each
  // time it is closed: opening and closing it then takes half the time.
  madvise(reinterpret_cast<void*>(made.first_page), pages, MADV_NOHUGEPAGE);
  Protect(made, PROT_READ | PROT_WRITE);
  memset(reinterpret_cast<void*>(made.first_page), kGarbage, pages);
  Protect(made, PROT_NONE);
  allocations[made.first_page] = made;
  *pointer = reinterpret_cast<void*>(made.start);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  using namespace simulated_cuda;  // NOLINT
  if (DeviceCount() == 0) return cudaErrorNoDevice;
  if (pointer == nullptr) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(mutex);
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const Allocation* found = Find(address);
  if (found == nullptr || found->start != address) {
    Complain("cudaFree of " + Hex(address) + ", " + Describe(address));
    return cudaErrorInvalidValue;
  }
  if (found->users > 0) {
    Die("cudaFree of " + Description(*found) + " while it is in use");
  }
  // Fresh addresses: the memory goes back to the system.
  if (mmap(reinterpret_cast<void*>(found->first_page), found->mapped(),
           PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED) {
    Die("cannot free " + Description(*found));
  }
  allocations.erase(found->first_page);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
  using namespace simulated_cuda;  // NOLINT
  if (DeviceCount() == 0) return cudaErrorNoDevice;
  if (posix_memalign(pointer, kPage, std::max<size_t>(size, 1)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  memset(*pointer, kGarbage, size);
  const std::lock_guard<std::mutex> lock(mutex);
  pinned.insert(*pointer);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  using namespace simulated_cuda;  // NOLINT
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (pinned.erase(pointer) == 0) {
      Complain("cudaFreeHost of " + Hex(reinterpret_cast<uintptr_t>(pointer)) +
               ", which is not from cudaMallocHost");
      return cudaErrorInvalidValue;
    }
  }
  free(pointer);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  using namespace simulated_cuda;  // NOLINT
  *attributes = cudaPointerAttributes();
  const int device = Owner(pointer);
  if (device != kHost) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (pinned.count(const_cast<void*>(pointer)) > 0) {
    attributes->type = cudaMemoryTypeHost;
    attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  if (size == 0) return cudaSuccess;
  std::string bad = WhyBad(pointer, size);
  if (bad.empty() && !simulated_cuda::IsDeviceMemory(pointer)) {
    bad = "the pointer is one to host memory";
  }
  if (!bad.empty()) {
    Complain("cudaMemset: " + bad);
    return cudaErrorInvalidValue;
  }
  simulated_cuda::Count([size](simulated_cuda::Counters* counters) {
    ++counters->memsets.calls;
    counters->memsets.bytes += size;
  });
  Operation operation("cudaMemset");
  operation.OpenAnywhere(pointer);
  memset(pointer, value, size);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size,
                            cudaStream_t stream) {
  return cudaMemset(pointer, value, size);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size,
                       cudaMemcpyKind kind) {
  if (size == 0) return cudaSuccess;
  for (const void* pointer : {static_cast<const void*>(to), from}) {
    const std::string bad = WhyBad(pointer, size);
    if (!bad.empty()) {
      Complain("cudaMemcpy: " + bad);
      return cudaErrorInvalidValue;
    }
  }
  const bool to_device = simulated_cuda::IsDeviceMemory(to);
  const bool from_device = simulated_cuda::IsDeviceMemory(from);
  const char* names[] = {"host to host", "host to device", "device to host",
                         "device to device"};
  const int fits = from_device * 2 + to_device;
  if (kind != cudaMemcpyDefault && kind != fits) {
    Complain(std::string("cudaMemcpy: asked for a copy from ") + names[kind] +
             ", but the pointers are of one from " + names[fits]);
    return cudaErrorInvalidValue;
  }
  simulated_cuda::Count([=](simulated_cuda::Counters* counters) {
    simulated_cuda::Traffic* traffic[] = {nullptr, &counters->host_to_device,
                                          &counters->device_to_host,
                                          &counters->device_to_device};
    if (traffic[fits] == nullptr) return;
    ++traffic[fits]->calls;
    traffic[fits]->bytes += size;
  });
  Operation operation("cudaMemcpy");
  operation.OpenAnywhere(to);
  operation.OpenAnywhere(from);
  memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, kind);
}
