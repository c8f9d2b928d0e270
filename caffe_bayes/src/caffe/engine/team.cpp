#include "caffe/engine/team.hpp"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace caffe {
namespace engine {

#ifdef _OPENMP

namespace {

bool forked = false;

const int watch_fork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

int TeamSize() {
  return forked || omp_in_parallel() ? 1 : omp_get_max_threads();
}

#else

int TeamSize() { return 1; }

#endif

}  // namespace engine
}  // namespace caffe
