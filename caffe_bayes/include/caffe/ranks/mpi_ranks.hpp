#ifndef CAFFE_RANKS_MPI_RANKS_HPP_
#define CAFFE_RANKS_MPI_RANKS_HPP_

#include <memory>

#include "caffe/ranks/ranks.hpp"

namespace caffe {

/// The ranks of the MPI job that started this process; null where none did. An
/// error in a program that was built without MPI. Gives each of the ranks of a
/// host its share of the cores, unless OMP_NUM_THREADS is set.
std::unique_ptr<Ranks> JoinByMpi();

}  // namespace caffe

#endif  // CAFFE_RANKS_MPI_RANKS_HPP_
