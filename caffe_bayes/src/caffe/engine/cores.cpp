#include "caffe/engine/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "caffe/engine/team.hpp"

// OpenBLAS heeds the affinity and OMP_NUM_THREADS by itself, but no quota. Null
// where Caffe is linked with another BLAS.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace caffe {
namespace engine {

namespace {

const double kNoQuota = std::numeric_limits<double>::infinity();

// std::thread::hardware_concurrency() counts all cores of the machine with some
// versions of glibc.
int AffinityCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  // More cores than cpu_set_t has bits, or a kernel that refuses.
  return std::thread::hardware_concurrency();
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

double Ratio(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// The quota of one cgroup alone, from the files of either version of cgroups.
// "max" and -1 stand for no quota, as does a file that is missing.
double QuotaOf(const std::string& cgroup) {
  double quota = 0, period = 0;
  if (std::istringstream(ReadAll(cgroup + "/cpu.max")) >> quota >> period) {
    return Ratio(quota, period);
  }
  std::istringstream(ReadAll(cgroup + "/cpu.cfs_quota_us")) >> quota;
  std::istringstream(ReadAll(cgroup + "/cpu.cfs_period_us")) >> period;
  return Ratio(quota, period);
}

double LeastQuota(const std::string& mount, std::string path) {
  double least = kNoQuota;
  // A path may lead out of the container, from where nothing can be read.
  if (path.find("/..") != std::string::npos) path.clear();
  for (;;) {
    least = std::min(least, QuotaOf(mount + path));
    if (path.empty()) return least;
    path.erase(path.rfind('/'));
  }
}

bool HasCpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

bool IsSet(const char* variable) { return std::getenv(variable) != nullptr; }

const bool blas_is_limited = [] {
  if (!openblas_set_num_threads || IsSet("OMP_NUM_THREADS") ||
      IsSet("OPENBLAS_NUM_THREADS") || IsSet("GOTO_NUM_THREADS") ||
      AvailableCores() == AffinityCount()) {
    return false;
  }
  openblas_set_num_threads(AvailableCores());
  return true;
}();

}  // namespace

double CpuQuota(const std::string& membership, const std::string& root) {
  double least = kNoQuota;
  std::istringstream lines(membership);
  // hierarchy:controllers:path, without controllers for version 2.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers.empty()) {
      least = std::min(least, LeastQuota(root, path));
    } else if (HasCpu(controllers)) {
      least = std::min({least, LeastQuota(root + "/" + controllers, path),
                        LeastQuota(root + "/cpu", path)});
    }
  }
  return least;
}

int AvailableCores() {
  const double quota = CpuQuota(ReadAll("/proc/self/cgroup"), "/sys/fs/cgroup");
  return std::max<int>(1, std::min<double>(AffinityCount(), std::ceil(quota)));
}

void ShareCores(int processes) {
  if (IsSet("OMP_NUM_THREADS")) return;
  const int threads = std::max(1, AvailableCores() / processes);
  SetTeamSize(threads);
  if (openblas_set_num_threads && !IsSet("OPENBLAS_NUM_THREADS") &&
      !IsSet("GOTO_NUM_THREADS")) {
    openblas_set_num_threads(threads);
  }
}

int FirstThreadCount(const char* omp_num_threads) {
  std::istringstream value(omp_num_threads ? omp_num_threads : "");
  int count = 0;
  char next = ',';
  if (!(value >> count) || (value >> next && next != ',')) return 0;
  return std::max(0, count);
}

int DefaultThreads() {
  const int wanted = FirstThreadCount(std::getenv("OMP_NUM_THREADS"));
  return wanted > 0 ? wanted : AvailableCores();
}

}  // namespace engine
}  // namespace caffe
