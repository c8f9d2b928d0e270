// Walks the grid of a kernel.
//
// The first thread of each block runs on a fiber, a stack of its own. If it
// ends without having met a barrier, the others are plain calls, one after
// another. If it stops at a barrier, each of the others gets a fiber too, and
// when all have come to the barrier they go on, again one after another.
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "device_code.hpp"

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

namespace simulated_cuda {
namespace {

const size_t kPage = 4096;
// An odd number of pages, and below a different start for each: else the stacks
// would compete for the same few places of the processor's caches.
const size_t kStack = 33 * kPage;
const size_t kStagger = 192;

Order OrderOfEnvironment() {
  const char* setting = getenv("SIMULATED_CUDA_ORDER");
  if (setting == nullptr || strcmp(setting, "forwards") == 0) {
    return Order::kForwards;
  }
  if (strcmp(setting, "backwards") == 0) return Order::kBackwards;
  if (strcmp(setting, "shuffled") == 0) return Order::kShuffled;
  Die("SIMULATED_CUDA_ORDER is '" + std::string(setting) +
      "', not forwards, backwards or shuffled");
}

Order& order() {
  static Order order = OrderOfEnvironment();
  return order;
}

/// The coordinates in a grid or block, in the order asked for.
class Walk {
 public:
  explicit Walk(uint3 shape)
      : shape_(shape),
        count_(uint64_t(shape.x) * shape.y * shape.z),
        index_(0),
        step_(1) {
    if (order() == Order::kBackwards) {
      index_ = step_ = count_ - 1;
    } else if (order() == Order::kShuffled) {
      // Near the golden ratio, neighbours in time are far apart.
      step_ = static_cast<uint64_t>(0.618 * count_) | 1;
      while (std::gcd(step_, count_) != 1) ++step_;
      index_ = count_ / 3;
    }
  }
  uint64_t count() const { return count_; }
  uint3 Next() {
    const uint64_t row = index_ / shape_.x;
    const uint3 coordinates = {static_cast<unsigned int>(index_ % shape_.x),
                               static_cast<unsigned int>(row % shape_.y),
                               static_cast<unsigned int>(row / shape_.y)};
    index_ = (index_ + step_) % count_;
    return coordinates;
  }

 private:
  uint3 shape_;
  uint64_t count_, index_, step_;
};

enum class State { kIdle, kRunning, kAtBarrier, kEnded };

// By the compiler's own setjmp, which saves no more than it must; the library's
// takes several times as long. It wants to be alone in its function.
typedef void* JumpBuffer[5];

[[noreturn]] __attribute__((noinline)) void Jump(JumpBuffer to) {
  __builtin_longjmp(to, 1);
}

/// Go on at `to`; a jump to `from` comes back.
__attribute__((noinline)) void Switch(JumpBuffer from, JumpBuffer to) {
  if (__builtin_setjmp(from) == 0) Jump(to);
}

/// Go to the start of a fiber; a jump to `from` comes back.
__attribute__((noinline)) void Start(JumpBuffer from, const ucontext_t* entry) {
  if (__builtin_setjmp(from) == 0) setcontext(entry);
}

struct Fiber {
  State state = State::kIdle;
  bool started = false;
  char* stack = nullptr;
  JumpBuffer here;
  const char* file = nullptr;  ///< of the barrier
  int line = 0;
};

/// What one thread of the host needs to run a kernel.
class Walker {
 public:
  ~Walker() {
    for (Fiber& fiber : fibers_) munmap(fiber.stack, kStack);
  }
  void Run(const char* name, dim3 grid, dim3 block, void (*call)(const void*),
           const void* context);
  /// Called by the running fiber.
  void Wait(const char* file, int line);

 private:
  void ListThreads(uint3 shape);
  void RunBlock();
  void Resume(int i);
  void GoBack();
  void CheckBarrier();
  static void Enter();

  std::vector<uint3> threads_;  ///< of a block, in the order they run
  Order order_of_threads_ = Order::kForwards;
  std::vector<Fiber> fibers_;  ///< in the same order
  Fiber* running_ = nullptr;
  JumpBuffer scheduler_;
  const char* name_ = nullptr;
  void (*call_)(const void*) = nullptr;
  const void* context_ = nullptr;
};

thread_local Walker walker;

/// The life of a fiber: it runs one thread of a grid after another.
void Walker::Enter() {
  for (;;) {
    walker.call_(walker.context_);
    walker.running_->state = State::kEnded;
    walker.GoBack();
  }
}

/// From the fiber to the scheduler.
void Walker::GoBack() { Switch(running_->here, scheduler_); }

/// From the scheduler to the i-th thread's fiber, until it goes back.
void Walker::Resume(int i) {
  Fiber* fiber = &fibers_[i];
  threadIdx = threads_[i];
  running_ = fiber;
  fiber->state = State::kRunning;
  if (fiber->started) {
    Switch(scheduler_, fiber->here);
  } else {
    fiber->started = true;
    ucontext_t entry;
    getcontext(&entry);
    // The lowest page stays closed: a stack that grows too far ends there.
    entry.uc_stack.ss_sp = fiber->stack + kPage;
    entry.uc_stack.ss_size = kStack - kPage - i * kStagger % kPage;
    entry.uc_link = nullptr;
    makecontext(&entry, &Walker::Enter, 0);
    Start(scheduler_, &entry);
  }
  running_ = nullptr;
}

void Walker::Wait(const char* file, int line) {
  if (running_ == nullptr) {
    Die(std::string(name_) + ": thread " + std::to_string(threadIdx.x) +
        " of block " + std::to_string(blockIdx.x) + " waits at the barrier " +
        file + ":" + std::to_string(line) +
        ", to which other threads of the block did not come");
  }
  running_->state = State::kAtBarrier;
  running_->file = file;
  running_->line = line;
  GoBack();
}

/// All threads must have ended, or wait at the same barrier.
void Walker::CheckBarrier() {
  const Fiber& first = fibers_[0];
  for (size_t i = 1; i < threads_.size(); ++i) {
    const Fiber& other = fibers_[i];
    if (other.state == first.state &&
        (first.state == State::kEnded ||
         (other.line == first.line &&
          (other.file == first.file || strcmp(other.file, first.file) == 0)))) {
      continue;
    }
    const auto describe = [](uint3 thread, const Fiber& fiber) {
      return "thread " + std::to_string(thread.x) +
             (fiber.state == State::kEnded
                  ? std::string(" ended")
                  : " waits at the barrier " + std::string(fiber.file) + ":" +
                        std::to_string(fiber.line));
    };
    Die(std::string(name_) + ": in block " + std::to_string(blockIdx.x) + " " +
        describe(threads_[0], first) + ", but " + describe(threads_[i], other));
  }
}

void Walker::RunBlock() {
  const size_t count = threads_.size();
  Resume(0);
  if (fibers_[0].state == State::kEnded) {
    for (size_t i = 1; i < count; ++i) {
      threadIdx = threads_[i];
      call_(context_);
    }
    return;
  }
  for (size_t i = 1; i < count; ++i) Resume(i);
  CheckBarrier();
  while (fibers_[0].state == State::kAtBarrier) {
    for (size_t i = 0; i < count; ++i) Resume(i);
    CheckBarrier();
  }
}

/// Mostly they are those of the launch before.
void Walker::ListThreads(uint3 shape) {
  Walk walk(shape);
  if (threads_.size() == walk.count() && order_of_threads_ == order() &&
      blockDim.x == shape.x && blockDim.y == shape.y) {
    return;
  }
  blockDim = shape;
  order_of_threads_ = order();
  threads_.clear();
  while (threads_.size() < walk.count()) threads_.push_back(walk.Next());
  while (fibers_.size() < threads_.size()) {
    fibers_.emplace_back();
    void* stack = mmap(nullptr, kStack, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) Die("no memory for the stacks of threads");
    fibers_.back().stack = static_cast<char*>(stack);
    if (mprotect(fibers_.back().stack + kPage, kStack - kPage,
                 PROT_READ | PROT_WRITE) != 0) {
      Die("no memory for the stacks of threads");
    }
  }
}

void Walker::Run(const char* name, dim3 grid, dim3 block,
                 void (*call)(const void*), const void* context) {
  name_ = name;
  call_ = call;
  context_ = context;
  gridDim = {grid.x, grid.y, grid.z};
  ListThreads({block.x, block.y, block.z});
  Walk blocks(gridDim);
  for (uint64_t i = 0; i < blocks.count(); ++i) {
    blockIdx = blocks.Next();
    RunBlock();
  }
  gridDim = {0, 0, 0};
}

/// The name of a kernel in "(namespace::kernel<Dtype>)", kept for ever.
const char* NameOfKernel(const char* expression) {
  static std::mutex mutex;
  static std::map<const char*, const char*> known;
  static std::set<std::string> names;
  const std::lock_guard<std::mutex> lock(mutex);
  const char*& name = known[expression];
  if (name == nullptr) {
    std::string text = expression;
    text = text.substr(1, text.find_first_of("<)") - 1);
    const size_t scope = text.rfind("::");
    if (scope != std::string::npos) text.erase(0, scope + 2);
    while (!text.empty() && text.back() == ' ') text.pop_back();
    name = names.insert(text).first->c_str();
  }
  return name;
}

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

Order SetOrder(Order new_order) { return std::exchange(order(), new_order); }

void Barrier(const char* file, int line) { walker.Wait(file, line); }

Grid::Grid(const char* expression, dim3 grid, dim3 block)
    : name_(NameOfKernel(expression)),
      grid_(grid),
      block_(block),
      operation_(nullptr),
      arguments_(0) {
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (DeviceCount() == 0) {
    last_error = cudaErrorNoDevice;
    return;
  }
  if (threads == 0 || threads > 1024 || block.z > 64 || blocks == 0 ||
      grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    Complain("kernel " + std::string(name_) + ": no device can launch " +
             std::to_string(blocks) + " blocks of " + std::to_string(threads) +
             " threads");
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  Count([this](Counters* counters) { ++counters->launches[name_]; });
  operation_ = new Operation(name_);
}

Grid::~Grid() { delete operation_; }

void Grid::ArgumentOfBytes(const void* value, size_t size, bool is_pointer) {
  ++arguments_;
  if (is_pointer) {
    operation_->OpenIfSet(*static_cast<void* const*>(value), arguments_);
  } else {
    operation_->OpenInside(value, size, arguments_);
  }
}

void Grid::Run(void (*call)(const void*), const void* context) {
  walker.Run(name_, grid_, block_, call, context);
}

}  // namespace simulated_cuda

cudaError_t cudaPeekAtLastError() { return simulated_cuda::last_error; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = simulated_cuda::last_error;
  simulated_cuda::last_error = cudaSuccess;
  return error;
}
