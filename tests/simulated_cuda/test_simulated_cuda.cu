// The simulated device does what a device does, and notices what a device would
// not forgive.

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <curand.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "simulated_cuda.hpp"

namespace simulated_cuda {

using std::string;
using std::vector;

const int kThreads = 128;
const Order kOrders[] = {Order::kForwards, Order::kBackwards, Order::kShuffled};

/// An array of a device.
template <typename T>
class DeviceVector {
 public:
  explicit DeviceVector(size_t size) : size_(size) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, size * sizeof(T)));
  }
  explicit DeviceVector(const vector<T>& values) : DeviceVector(values.size()) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data_, values.data(), size_ * sizeof(T),
                                      cudaMemcpyHostToDevice));
  }
  ~DeviceVector() { EXPECT_EQ(cudaSuccess, cudaFree(data_)); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  T* data() { return data_; }
  vector<T> host() const {
    vector<T> values(size_);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(values.data(), data_, size_ * sizeof(T),
                                      cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t size_;
  T* data_;
};

class SimulatedCudaTest : public ::testing::Test {
 protected:
  ~SimulatedCudaTest() override {
    SetOrder(order_);
    cudaSetDevice(0);
  }

 private:
  const Order order_ = SetOrder(Order::kForwards);
};
typedef SimulatedCudaTest SimulatedCudaDeathTest;

// ---- The grid ---------------------------------------------------------------

struct Visit {
  uint3 block, thread;
  int turn;
};

__global__ void VisitAll(Visit* visits, int* turns) {
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  const int block =
      (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread =
      (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  visits[block * threads + thread] = {blockIdx, threadIdx, atomicAdd(turns, 1)};
}

vector<int> Turns(dim3 grid, dim3 block) {
  const int count = grid.x * grid.y * grid.z * block.x * block.y * block.z;
  DeviceVector<Visit> visits(vector<Visit>(count, Visit{{}, {}, -1}));
  DeviceVector<int> turns(vector<int>(1, 0));
  VisitAll<<<grid, block>>>(visits.data(), turns.data());
  vector<int> result;
  for (const Visit& visit : visits.host()) {
    EXPECT_LT(visit.block.x, grid.x);
    EXPECT_LT(visit.block.y, grid.y);
    EXPECT_LT(visit.block.z, grid.z);
    EXPECT_LT(visit.thread.x, block.x);
    EXPECT_LT(visit.thread.y, block.y);
    EXPECT_LT(visit.thread.z, block.z);
    result.push_back(visit.turn);
  }
  return result;
}

TEST_F(SimulatedCudaTest, EachThreadRunsOnceInTheOrderAskedFor) {
  const dim3 grid(5, 3, 2), block(4, 3, 2);
  vector<int> sorted(5 * 3 * 2 * 4 * 3 * 2);
  std::iota(sorted.begin(), sorted.end(), 0);
  const vector<int> reversed(sorted.rbegin(), sorted.rend());
  SetOrder(Order::kForwards);
  EXPECT_EQ(sorted, Turns(grid, block));
  SetOrder(Order::kBackwards);
  EXPECT_EQ(reversed, Turns(grid, block));
  SetOrder(Order::kShuffled);
  vector<int> shuffled = Turns(grid, block);
  EXPECT_NE(sorted, shuffled);
  EXPECT_NE(reversed, shuffled);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(sorted, shuffled);
}

__global__ void Nothing() {}

TEST_F(SimulatedCudaTest, LimitsOfLaunchesAreThoseOfDevices) {
  Nothing<<<0x7FFFFFFF / 100000, 1024, 0, nullptr>>>();
  EXPECT_EQ(cudaSuccess, cudaPeekAtLastError());
  Nothing<<<0, 1>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaPeekAtLastError());
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  Nothing<<<1, 0>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  Nothing<<<1, 1025>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  Nothing<<<1, dim3(64, 32)>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  Nothing<<<dim3(1, 65536), 1>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  Nothing<<<0x80000000u, 1>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
}

// ---- Barriers ---------------------------------------------------------------

/// The sum of each block's part of x.
template <typename T>
__global__ void SumOfBlock(const T* x, T* sums) {
  __shared__ T parts[kThreads];
  parts[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

void CheckSumOfBlock(int first) {
  const int blocks = 7;
  vector<double> x(blocks * kThreads), expected(blocks, 0);
  std::iota(x.begin(), x.end(), first);
  for (int i = 0; i < x.size(); ++i) expected[i / kThreads] += x[i];
  DeviceVector<double> device_x(x), sums(blocks);
  SumOfBlock<double><<<blocks, kThreads>>>(device_x.data(), sums.data());
  EXPECT_EQ(expected, sums.host());
}

TEST_F(SimulatedCudaTest, ThreadsMeetAtBarriersInAnyOrder) {
  for (Order order : kOrders) {
    SetOrder(order);
    CheckSumOfBlock(3);
  }
}

TEST_F(SimulatedCudaTest, SharedMemoryIsOfOneHostThread) {
  vector<std::thread> threads;
  for (int first = 0; first < 3; ++first) {
    threads.emplace_back([first] {
      for (int i = 0; i < 20; ++i) CheckSumOfBlock(first * 1000 + i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

__global__ void SomeSkipTheBarrier(int first, int last) {
  if (threadIdx.x >= first && threadIdx.x < last) return;
  __syncthreads();
}

__global__ void DifferentBarriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(SimulatedCudaDeathTest, BarrierThatNotAllReach) {
  EXPECT_DEATH((SomeSkipTheBarrier<<<1, 4>>>(3, 4)),
               "SomeSkipTheBarrier: in block 0 thread 0 waits at the barrier "
               ".*test_simulated_cuda.cu:[0-9]+, but thread 3 ended");
  EXPECT_DEATH((SomeSkipTheBarrier<<<1, 4>>>(0, 1)),
               "SomeSkipTheBarrier: thread 1 of block 0 waits at the barrier");
  EXPECT_DEATH((DifferentBarriers<<<1, 2>>>()),
               "DifferentBarriers: in block 0 thread 0 waits at the barrier "
               ".*, but thread 1 waits at the barrier");
}

// ---- Memory -----------------------------------------------------------------

__global__ void Write(float* x, int at, float value) { x[at] = value; }
__global__ void Read(const float* x, int at, float* y) { *y = x[at]; }

struct Pointers {
  const float* from;
  float* to;
};
__global__ void CopyOne(Pointers pointers) { *pointers.to = *pointers.from; }

struct Padded {
  int* to;
  int number;  // and four bytes that are nobody's
};
__global__ void WriteNumber(Padded padded) { *padded.to = padded.number; }

TEST_F(SimulatedCudaTest, NewMemoryIsNotANumber) {
  DeviceVector<float> x(100);
  for (float value : x.host()) EXPECT_TRUE(std::isnan(value));
  DeviceVector<double> y(100);
  for (double value : y.host()) EXPECT_TRUE(std::isnan(value));
}

TEST_F(SimulatedCudaTest, KernelsReadAndWrite) {
  DeviceVector<float> x(vector<float>{1, 2, 3}), y(1);
  Write<<<1, 1>>>(x.data(), 2, 7);
  EXPECT_EQ((vector<float>{1, 2, 7}), x.host());
  Read<<<1, 1>>>(x.data(), 1, y.data());
  EXPECT_EQ(vector<float>{2}, y.host());
  CopyOne<<<1, 1>>>(Pointers{x.data() + 2, y.data()});
  EXPECT_EQ(vector<float>{7}, y.host());
}

// A number is no half of a pointer whose other half was left in the padding.
TEST_F(SimulatedCudaTest, PaddingMayHoldAnything) {
  DeviceVector<int> x(1);
  int on_host;
  const int* const pointer = &on_host;
  Padded padded = {};
  ASSERT_EQ(offsetof(Padded, number) + sizeof(pointer), sizeof(padded));
  memcpy(reinterpret_cast<char*>(&padded) + offsetof(Padded, number), &pointer,
         sizeof(pointer));
  padded.to = x.data();
  WriteNumber<<<1, 1>>>(padded);
  EXPECT_EQ(vector<int>{padded.number}, x.host());
}

TEST_F(SimulatedCudaTest, AllocatedBytesAreCountedByDevice) {
  const size_t before[] = {AllocatedBytes(0), AllocatedBytes(1)};
  ASSERT_EQ(cudaSuccess, cudaSetDevice(1));
  {
    DeviceVector<float> x(10);
    EXPECT_EQ(before[0], AllocatedBytes(0));
    EXPECT_EQ(before[1] + 40, AllocatedBytes(1));
    EXPECT_TRUE(IsDeviceMemory(x.data()));
  }
  EXPECT_EQ(before[1], AllocatedBytes(1));
  int on_host;
  EXPECT_FALSE(IsDeviceMemory(&on_host));
}

TEST_F(SimulatedCudaDeathTest, HostTouchesDeviceMemory) {
  DeviceVector<float> x(vector<float>(10, 1));
  volatile float* data = x.data();
  EXPECT_DEATH(data[3] = 2,
               "the host used address .*, byte 12 of the 40 bytes at .* of "
               "device 0");
  EXPECT_DEATH(exit(data[3] == 1), "the host used address");
  // Also after a kernel has had it open.
  Write<<<1, 1>>>(x.data(), 2, 7);
  EXPECT_DEATH(data[3] = 2, "the host used address");
}

TEST_F(SimulatedCudaDeathTest, KernelOutOfBounds) {
  DeviceVector<float> x(1000), y(10), z(9);
  EXPECT_DEATH((Read<<<1, 1>>>(y.data(), 12, z.data())),
               "Read, block 0, thread 0 used address .*, 8 bytes past the end "
               "of the 40 bytes");
  EXPECT_DEATH((Write<<<1, 1>>>(x.data(), 1000, 1)),
               "0 bytes past the end of the 4000 bytes");
  // The last page goes on for some bytes, since the start is aligned.
  EXPECT_DEATH((Write<<<1, 1>>>(z.data(), 9, 1)),
               "Write wrote past the end of the 36 bytes");
  EXPECT_DEATH((Write<<<1, 1>>>(z.data(), -1, 1)),
               "Write wrote before the start of the 36 bytes");
}

TEST_F(SimulatedCudaDeathTest, KernelUsesWhatItMayNot) {
  DeviceVector<float> x(10), y(10);
  float on_host = 0;
  EXPECT_DEATH((Read<<<1, 1>>>(x.data(), 0, &on_host)),
               "Read: argument 3 is 0x.*, which is not device memory");
  EXPECT_DEATH((Read<<<1, 1>>>(nullptr, 0, x.data())),
               "Read, block 0, thread 0 used address 0x0");
  // It was given x, and goes astray into y.
  const int distance = y.data() - x.data();
  EXPECT_DEATH((Write<<<1, 1>>>(x.data(), distance, 1)),
               "Write, block 0, thread 0 used address .*, byte 0 of the 40");
  float* freed;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&freed, 40));
  ASSERT_EQ(cudaSuccess, cudaFree(freed));
  EXPECT_DEATH((Write<<<1, 1>>>(freed, 0, 1)), "memory that was freed");
  EXPECT_DEATH((CopyOne<<<1, 1>>>(Pointers{x.data(), freed})),
               "CopyOne, block 0, thread 0 used address .*, which is device "
               "memory that was freed");
  EXPECT_DEATH((CopyOne<<<1, 1>>>(Pointers{x.data(), &on_host})),
               "CopyOne: argument 1 has 0x.* in it, which is memory of the "
               "host");
  ASSERT_EQ(cudaSuccess, cudaSetDevice(1));
  EXPECT_DEATH((Write<<<1, 1>>>(x.data(), 0, 1)),
               "Write: argument 1 is memory of device 0, but the current one "
               "is 1");
}

TEST_F(SimulatedCudaTest, FreedAddressesAreNotUsedAgain) {
  float *first, *second;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&first, 40));
  ASSERT_EQ(cudaSuccess, cudaFree(first));
  ASSERT_EQ(cudaSuccess, cudaMalloc(&second, 40));
  EXPECT_NE(first, second);
  EXPECT_EQ(cudaErrorInvalidValue, cudaFree(first));
  EXPECT_EQ(cudaErrorInvalidValue, cudaFree(second + 1));
  EXPECT_EQ(cudaSuccess, cudaFree(second));
  EXPECT_EQ(cudaSuccess, cudaFree(nullptr));
}

TEST_F(SimulatedCudaTest, CopiesMustFitThePointers) {
  float host[10] = {};
  DeviceVector<float> x(10);
  const size_t size = sizeof(host);
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(host, x.data(), size, cudaMemcpyHostToDevice));
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(x.data(), host, size, cudaMemcpyDeviceToHost));
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(x.data(), host, size, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(host, x.data(), size, cudaMemcpyHostToHost));
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(x.data(), nullptr, size, cudaMemcpyDefault));
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaMemcpy(x.data() + 1, host, size, cudaMemcpyDefault));
  EXPECT_EQ(cudaErrorInvalidValue, cudaMemset(host, 0, size));
  EXPECT_EQ(cudaErrorInvalidValue, cudaMemset(x.data(), 0, size + 4));
  EXPECT_EQ(cudaSuccess, cudaMemcpy(x.data(), host, size, cudaMemcpyDefault));
  EXPECT_EQ(vector<float>(10, 0), x.host());
}

TEST_F(SimulatedCudaTest, PinnedMemoryIsOfTheHost) {
  void* pinned;
  ASSERT_EQ(cudaSuccess, cudaMallocHost(&pinned, 40));
  static_cast<float*>(pinned)[9] = 1;
  EXPECT_FALSE(IsDeviceMemory(pinned));
  EXPECT_EQ(cudaSuccess, cudaFreeHost(pinned));
  int on_stack;
  EXPECT_EQ(cudaErrorInvalidValue, cudaFreeHost(&on_stack));
}

TEST_F(SimulatedCudaTest, DevicesAreChosenByThread) {
  int count = 0, device = -1;
  ASSERT_EQ(cudaSuccess, cudaGetDeviceCount(&count));
  ASSERT_GE(count, 2);
  EXPECT_EQ(cudaErrorInvalidDevice, cudaSetDevice(count));
  EXPECT_EQ(cudaErrorInvalidDevice, cudaSetDevice(-1));
  EXPECT_EQ(cudaSuccess, cudaSetDevice(1));
  std::thread([&device] { cudaGetDevice(&device); }).join();
  EXPECT_EQ(0, device);
  EXPECT_EQ(cudaSuccess, cudaGetDevice(&device));
  EXPECT_EQ(1, device);
}

TEST_F(SimulatedCudaTest, CountersCount) {
  vector<float> host(10);
  DeviceVector<float> x(host), y(host);
  cublasHandle_t handle;
  ASSERT_EQ(CUBLAS_STATUS_SUCCESS, cublasCreate(&handle));
  ResetCounters();
  for (int i = 0; i < 3; ++i) Write<<<1, 1>>>(x.data(), i, 7);
  SumOfBlock<float><<<1, 1>>>(x.data(), y.data());
  Nothing<<<0, 1>>>();
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  const float two = 2;
  cublasSaxpy(handle, 10, &two, x.data(), 1, y.data(), 1);
  cudaMemcpy(x.data(), host.data(), 40, cudaMemcpyDefault);
  cudaMemcpy(x.data(), host.data(), 8, cudaMemcpyHostToDevice);
  cudaMemcpy(host.data(), x.data(), 12, cudaMemcpyDefault);
  cudaMemcpy(y.data(), x.data(), 16, cudaMemcpyDeviceToDevice);
  cudaMemset(y.data(), 0, 20);
  const Counters counters = ReadCounters();
  EXPECT_EQ((std::map<string, int64_t>{{"SumOfBlock", 1}, {"Write", 3}}),
            counters.launches);
  EXPECT_EQ(4, counters.TotalLaunches());
  EXPECT_EQ((std::map<string, int64_t>{{"cublasSaxpy", 1}}),
            counters.library_calls);
  EXPECT_EQ(2, counters.host_to_device.calls);
  EXPECT_EQ(48, counters.host_to_device.bytes);
  EXPECT_EQ(1, counters.device_to_host.calls);
  EXPECT_EQ(12, counters.device_to_host.bytes);
  EXPECT_EQ(1, counters.device_to_device.calls);
  EXPECT_EQ(16, counters.device_to_device.bytes);
  EXPECT_EQ(1, counters.memsets.calls);
  EXPECT_EQ(20, counters.memsets.bytes);
  std::ostringstream table;
  table << counters;
  EXPECT_NE(string::npos, table.str().find("kernel Write"));
  ResetCounters();
  EXPECT_EQ(0, ReadCounters().TotalLaunches());
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, cublasDestroy(handle));
}

// ---- Libraries --------------------------------------------------------------

cublasStatus_t Gemm(cublasHandle_t handle, cublasOperation_t trans_a,
                    cublasOperation_t trans_b, int m, int n, int k, float alpha,
                    const float* a, int lda, const float* b, int ldb,
                    float beta, float* c, int ldc) {
  return cublasSgemm(handle, trans_a, trans_b, m, n, k, &alpha, a, lda, b, ldb,
                     &beta, c, ldc);
}
cublasStatus_t Gemm(cublasHandle_t handle, cublasOperation_t trans_a,
                    cublasOperation_t trans_b, int m, int n, int k,
                    double alpha, const double* a, int lda, const double* b,
                    int ldb, double beta, double* c, int ldc) {
  return cublasDgemm(handle, trans_a, trans_b, m, n, k, &alpha, a, lda, b, ldb,
                     &beta, c, ldc);
}
cublasStatus_t Gemv(cublasHandle_t handle, cublasOperation_t trans, int m,
                    int n, float alpha, const float* a, int lda, const float* x,
                    float beta, float* y) {
  return cublasSgemv(handle, trans, m, n, &alpha, a, lda, x, 1, &beta, y, 1);
}
cublasStatus_t Gemv(cublasHandle_t handle, cublasOperation_t trans, int m,
                    int n, double alpha, const double* a, int lda,
                    const double* x, double beta, double* y) {
  return cublasDgemv(handle, trans, m, n, &alpha, a, lda, x, 1, &beta, y, 1);
}

template <typename T>
class SimulatedCublasTest : public SimulatedCudaTest {
 protected:
  SimulatedCublasTest() { cublasCreate(&handle_); }
  ~SimulatedCublasTest() override { cublasDestroy(handle_); }

  /// Small whole numbers, so that sums in any order are exact.
  static vector<T> Numbers(int count, int first) {
    vector<T> numbers(count);
    for (int i = 0; i < count; ++i) numbers[i] = (first + i * 7) % 11 - 5;
    return numbers;
  }

  cublasHandle_t handle_;
};

typedef ::testing::Types<float, double> FloatTypes;
TYPED_TEST_CASE(SimulatedCublasTest, FloatTypes);

TYPED_TEST(SimulatedCublasTest, ProductsAreThoseOfLoops) {
  typedef TypeParam T;
  const int m = 5, n = 4, k = 3, ld = 6;
  const T alpha = 2, beta = 3;
  const vector<T> a = this->Numbers(ld * ld, 1), b = this->Numbers(ld * ld, 2),
                  c = this->Numbers(ld * ld, 3);
  const auto at = [ld](const vector<T>& x, bool transposed, int row,
                       int column) {
    return transposed ? x[row * ld + column] : x[column * ld + row];
  };
  DeviceVector<T> device_a(a), device_b(b);
  for (int transposed = 0; transposed < 4; ++transposed) {
    const bool trans_a = transposed & 1, trans_b = transposed & 2;
    vector<T> expected = c;
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        T sum = 0;
        for (int l = 0; l < k; ++l) {
          sum += at(a, trans_a, i, l) * at(b, trans_b, l, j);
        }
        expected[j * ld + i] = alpha * sum + beta * c[j * ld + i];
      }
    }
    DeviceVector<T> result(c);
    EXPECT_EQ(CUBLAS_STATUS_SUCCESS,
              Gemm(this->handle_, trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                   trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, alpha,
                   device_a.data(), ld, device_b.data(), ld, beta,
                   result.data(), ld));
    EXPECT_EQ(expected, result.host());
  }
  for (bool transposed : {false, true}) {
    vector<T> expected = c;
    for (int i = 0; i < (transposed ? k : m); ++i) {
      T sum = 0;
      for (int l = 0; l < (transposed ? m : k); ++l) {
        sum += at(a, transposed, i, l) * b[l];
      }
      expected[i] = alpha * sum + beta * c[i];
    }
    DeviceVector<T> result(c);
    EXPECT_EQ(
        CUBLAS_STATUS_SUCCESS,
        Gemv(this->handle_, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, m, k, alpha,
             device_a.data(), ld, device_b.data(), beta, result.data()));
    EXPECT_EQ(expected, result.host());
  }
}

TYPED_TEST(SimulatedCublasTest, MatricesMustBeThere) {
  typedef TypeParam T;
  DeviceVector<T> a(vector<T>(12, 1)), b(vector<T>(12, 1)), c(12), short_c(11);
  vector<T> on_host(12);
  EXPECT_DEATH(Gemm(this->handle_, CUBLAS_OP_N, CUBLAS_OP_N, 4, 3, 2, T(1),
                    a.data(), 4, b.data(), 2, T(0), short_c.data(), 4),
               "cublas[SD]gemm: argument 13: .* do not fit into");
  EXPECT_DEATH(Gemm(this->handle_, CUBLAS_OP_N, CUBLAS_OP_N, 4, 3, 2, T(1),
                    a.data(), 4, on_host.data(), 2, T(0), c.data(), 4),
               "cublas[SD]gemm: argument 10 is .*, which is not device memory");
  EXPECT_EQ(CUBLAS_STATUS_INVALID_VALUE,
            Gemm(this->handle_, CUBLAS_OP_N, CUBLAS_OP_N, 4, 3, 2, T(1),
                 a.data(), 3, b.data(), 2, T(0), c.data(), 4));
  ASSERT_EQ(cudaSuccess, cudaSetDevice(1));
  EXPECT_DEATH(Gemv(this->handle_, CUBLAS_OP_N, 4, 3, T(1), a.data(), 4,
                    b.data(), T(0), c.data()),
               "the handle was made for device 0, but the current one is 1");
}

TEST_F(SimulatedCudaTest, VectorsOfCublas) {
  cublasHandle_t handle;
  ASSERT_EQ(CUBLAS_STATUS_SUCCESS, cublasCreate(&handle));
  DeviceVector<float> x(vector<float>{1, -2, 3}), y(vector<float>{4, 5, 6});
  const float two = 2;
  float result;
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS,
            cublasSdot(handle, 3, x.data(), 1, y.data(), 1, &result));
  EXPECT_EQ(12, result);
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS,
            cublasSasum(handle, 3, x.data(), 1, &result));
  EXPECT_EQ(6, result);
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS,
            cublasSaxpy(handle, 3, &two, x.data(), 1, y.data(), 1));
  EXPECT_EQ((vector<float>{6, 1, 12}), y.host());
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, cublasSscal(handle, 3, &two, x.data(), 1));
  EXPECT_EQ((vector<float>{2, -4, 6}), x.host());
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS,
            cublasScopy(handle, 3, x.data(), 1, y.data(), 1));
  EXPECT_EQ((vector<float>{2, -4, 6}), y.host());
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, cublasDestroy(handle));
}

TEST_F(SimulatedCudaTest, RandomNumbersHaveTheirDistribution) {
  curandGenerator_t generator;
  ASSERT_EQ(CURAND_STATUS_SUCCESS,
            curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT));
  const int n = 100000;
  const auto draw = [&](int seed, int offset, bool normal) {
    DeviceVector<float> x(n);
    curandSetPseudoRandomGeneratorSeed(generator, seed);
    curandSetGeneratorOffset(generator, offset);
    EXPECT_EQ(CURAND_STATUS_SUCCESS,
              normal ? curandGenerateNormal(generator, x.data(), n, 3, 2)
                     : curandGenerateUniform(generator, x.data(), n));
    return x.host();
  };
  const auto moment = [](const vector<float>& x, double center, int power) {
    double sum = 0;
    for (float value : x) sum += std::pow(value - center, power);
    return sum / x.size();
  };
  const vector<float> uniform = draw(1, 0, false);
  EXPECT_GT(*std::min_element(uniform.begin(), uniform.end()), 0);
  EXPECT_LE(*std::max_element(uniform.begin(), uniform.end()), 1);
  // Five standard errors.
  EXPECT_NEAR(0.5, moment(uniform, 0, 1), 5 * std::sqrt(1 / 12. / n));
  EXPECT_NEAR(1 / 12., moment(uniform, 0.5, 2), 5 * std::sqrt(1 / 180. / n));
  const vector<float> normal = draw(1, 0, true);
  EXPECT_NEAR(3, moment(normal, 0, 1), 5 * 2 / std::sqrt(n));
  EXPECT_NEAR(4, moment(normal, 3, 2), 5 * 4 * std::sqrt(2. / n));
  EXPECT_NEAR(0, moment(normal, 3, 3), 5 * 8 * std::sqrt(15. / n));
  EXPECT_EQ(uniform, draw(1, 0, false));
  EXPECT_NE(uniform, draw(2, 0, false));
  const vector<float> later = draw(1, 10, false);
  EXPECT_TRUE(
      std::equal(later.begin(), later.end() - 10, uniform.begin() + 10));
  DeviceVector<float> odd(3);
  EXPECT_EQ(CURAND_STATUS_LENGTH_NOT_MULTIPLE,
            curandGenerateNormal(generator, odd.data(), 3, 0, 1));
  EXPECT_EQ(CURAND_STATUS_SUCCESS, curandDestroyGenerator(generator));
}

/// Calls it in a thread for each rank, which is also the device.
template <typename Function>
void ForEachRank(int count, Function function) {
  vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([rank, function] {
      ASSERT_EQ(cudaSuccess, cudaSetDevice(rank));
      function(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SimulatedCudaTest, RanksSumAndShare) {
  const int count = 2, rounds = 50;
  vector<ncclComm_t> comms(count);
  ASSERT_EQ(ncclSuccess, ncclCommInitAll(comms.data(), count, nullptr));
  ForEachRank(count, [&](int rank) {
    for (int round = 0; round < rounds; ++round) {
      DeviceVector<float> x(vector<float>{rank + 1.f, round * rank + 0.f});
      DeviceVector<float> sum(2);
      EXPECT_EQ(ncclSuccess, ncclAllReduce(x.data(), sum.data(), 2, ncclFloat,
                                           ncclSum, comms[rank], nullptr));
      EXPECT_EQ((vector<float>{3, round + 0.f}), sum.host());
      DeviceVector<double> y(vector<double>{rank * 10. + round});
      EXPECT_EQ(ncclSuccess,
                ncclBcast(y.data(), 1, ncclDouble, 1, comms[rank], nullptr));
      EXPECT_EQ(vector<double>{10. + round}, y.host());
      EXPECT_EQ(ncclSuccess, ncclAllReduce(y.data(), y.data(), 1, ncclDouble,
                                           ncclSum, comms[rank], nullptr));
      EXPECT_EQ(vector<double>{20. + 2 * round}, y.host());
    }
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(comms[rank]));
  });
}

TEST_F(SimulatedCudaTest, RanksMeetByUniqueId) {
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  ForEachRank(2, [id](int rank) {
    ncclComm_t comm;
    ASSERT_EQ(ncclSuccess, ncclCommInitRank(&comm, 2, id, rank));
    DeviceVector<float> x(vector<float>{rank + 1.f});
    EXPECT_EQ(ncclSuccess, ncclAllReduce(x.data(), x.data(), 1, ncclFloat,
                                         ncclSum, comm, nullptr));
    EXPECT_EQ(vector<float>{3}, x.host());
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
  });
}

TEST_F(SimulatedCudaDeathTest, RanksThatDoNotAgree) {
  vector<ncclComm_t> comms(2);
  const int same[] = {1, 1};
  EXPECT_EQ(ncclInvalidUsage, ncclCommInitAll(comms.data(), 2, same));
  ASSERT_EQ(ncclSuccess, ncclCommInitAll(comms.data(), 2, nullptr));
  const auto reduce = [&](int rank, int count) {
    DeviceVector<float> x(vector<float>(5, 0));
    ncclAllReduce(x.data(), x.data(), count, ncclFloat, ncclSum, comms[rank],
                  nullptr);
  };
  EXPECT_DEATH(ForEachRank(2, [&](int rank) { reduce(rank, 4 + rank); }),
               "ncclAllReduce of 4 floats.*ncclAllReduce of 5 floats|"
               "ncclAllReduce of 5 floats.*ncclAllReduce of 4 floats");
  EXPECT_DEATH(reduce(1, 5), "rank 1 is on device 1, but the current one is 0");
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
}

}  // namespace simulated_cuda
