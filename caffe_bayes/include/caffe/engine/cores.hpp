#ifndef CAFFE_ENGINE_CORES_HPP_
#define CAFFE_ENGINE_CORES_HPP_

#include <string>

namespace caffe {
namespace engine {

/// How many threads to use by default: the first number of OMP_NUM_THREADS if
/// it is set, else AvailableCores().
int DefaultThreads();

/// How many cores this process may keep busy: those of its CPU affinity, or the
/// CPU quota of its cgroup, rounded up, if that is less. At least 1.
int AvailableCores();

/// Lets this process use its share of AvailableCores(), which `processes` of
/// them use together. Does nothing if OMP_NUM_THREADS is set.
void ShareCores(int processes);

/// The first number of a value of OMP_NUM_THREADS such as "4" or "4,2"; 0 if
/// the value is null or not valid.
int FirstThreadCount(const char* omp_num_threads);

/// How many cores the quotas of a process allow, such as 1.5; infinity if there
/// is no quota. The least of its cgroup's and all of its ancestors' counts.
///
/// @param membership what /proc/self/cgroup says: the process's cgroups
/// @param root       where the cgroup file systems are: /sys/fs/cgroup. In a
///                   container this often is the container's own cgroup, and
///                   the path in `membership` is one of the host's.
double CpuQuota(const std::string& membership, const std::string& root);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_CORES_HPP_
