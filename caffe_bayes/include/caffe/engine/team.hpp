#ifndef CAFFE_ENGINE_TEAM_HPP_
#define CAFFE_ENGINE_TEAM_HPP_

// The engine's one team of threads.

#include <cstddef>

namespace caffe {
namespace engine {

/// How many threads a ParallelFor uses: DefaultThreads() of cores.hpp unless
/// SetTeamSize was called. It is 1 inside of a ParallelFor, and in a forked
/// process, which has none of its parent's other threads.
int TeamSize();

/// Takes effect with the next ParallelFor. At most 256 threads.
void SetTeamSize(int threads);

/// Calls work(context, i) once for each i with 0 <= i < n. ParallelFor below
/// takes a lambda instead.
void RunOnTeam(int n, void (*work)(const void* context, int i),
               const void* context);

/**
 * @brief Calls work(i) once for each i with 0 <= i < n, spread over the team.
 *
 * Each thread starts with its own range of i, which is the same each time for
 * the same n, so that its cache still holds what it used before. Then it takes
 * what is left of the other ranges. The calling thread takes part and does all
 * of the work that no other thread has begun, so it never waits for a thread
 * that the system does not run.
 *
 * An exception that work throws is rethrown here after all threads have
 * stopped, and no further i is begun. If several throw, it is the first.
 */
template <typename Work>
void ParallelFor(int n, const Work& work) {
  RunOnTeam(
      n, [](const void* w, int i) { (*static_cast<const Work*>(w))(i); },
      &work);
}

/// How many numbers a thread takes at a time when work on an array has no
/// natural portions.
const int kPortion = 1 << 13;

inline int Portions(int n) { return (n + kPortion - 1) / kPortion; }

/// Calls work(portion, first, count) for each portion of n numbers. The
/// portions are the same for any number of threads.
template <typename Work>
void ParallelPortions(int n, const Work& work) {
  ParallelFor(Portions(n), [&](int portion) {
    const int first = portion * kPortion;
    work(portion, first, n - first < kPortion ? n - first : kPortion);
  });
}

/// Calls work(first, count) for each group of n items of `size` numbers. The
/// groups are the same for any number of threads, about a portion each.
template <typename Work>
void ParallelGroups(int n, ptrdiff_t size, const Work& work) {
  const int most = size < kPortion ? kPortion / (size > 1 ? size : 1) : 1;
  ParallelFor((n + most - 1) / most, [&](int group) {
    const int first = group * most;
    work(first, n - first < most ? n - first : most);
  });
}

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_TEAM_HPP_
