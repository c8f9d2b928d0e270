#ifndef CAFFE_RANKS_RANKS_HPP_
#define CAFFE_RANKS_RANKS_HPP_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "caffe/proto/caffe.pb.h"

namespace caffe {

/**
 * @brief The processes that train one net together, each on its part of every
 *        batch.
 *
 * They are numbered 0, 1, ...; rank 0 also logs and writes snapshots.
 * All of them must call the collective functions below, in the same order. This
 * interface keeps MPI out of libcaffe: the caffe tool brings an implementation
 * (caffe_bayes/tools/mpi_ranks.cpp).
 */
class Ranks {
 public:
  virtual ~Ranks() {}

  /// Those that this process is one of; null where it trains alone.
  static Ranks* Get();
  /// Makes this process one of `ranks`, or leave the ones that it is one of.
  static void Set(std::unique_ptr<Ranks> ranks);

  virtual int rank() const = 0;
  virtual int count() const = 0;
  /// Among the ranks of this host.
  virtual int local_rank() const = 0;
  virtual int local_count() const = 0;

  /// Whether the batch of the prototxt is that of all ranks together, or of
  /// each.
  bool divides_batch() const { return divides_batch_; }
  void set_divides_batch(bool divides) { divides_batch_ = divides; }

  // ---- Collective ----

  /// Starts to replace numbers by their sums over all ranks. They must stay
  /// where they are until Wait().
  virtual void StartSum(float* numbers, int n) = 0;
  virtual void StartSum(double* numbers, int n) = 0;
  /// Waits for all sums that were started.
  virtual void Wait() = 0;
  /// Gives all ranks the bytes of rank 0.
  virtual void Broadcast(void* bytes, size_t n) = 0;
  /// The smallest of the numbers that the ranks give.
  virtual int64_t Smallest(int64_t number) = 0;

  // ---- Not collective ----

  /// Works on the sums that were started, without waiting for them.
  virtual void Progress() = 0;
  /// Ends the processes of all ranks.
  virtual void Abort() = 0;

  /// Called once by each rank, when it is set up or has failed to be.
  /// @return the first rank that failed; count() if none did
  int EndSetUp(bool failed);
  /// Whether EndSetUp has been called: from then on, a rank that fails ends
  /// the others.
  bool is_set_up() const { return is_set_up_; }

 private:
  bool divides_batch_ = true;
  bool is_set_up_ = false;
};

/// Thrown where another rank failed, which tells why.
class OtherRankFailed : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

// What a process that trains alone may ask as well: it is rank 0 of 1.
namespace ranks {

int Rank();
int Count();

/// Whether a record is for another rank. In training each batch of all ranks is
/// a run of records, of which rank r takes part r; in tests batch b is for rank
/// b mod Count().
/// @param record the number of the record, from 0
/// @param batch  the batch of one rank
bool IsForAnother(uint64_t record, int batch);

/// How many of the first so many batches of tests are for this rank.
uint64_t Share(uint64_t batches);

/// Where the noise of this rank begins in that of a batch, of which it has n
/// numbers. In tests a rank has whole batches.
uint64_t FirstOfPart(Phase phase, uint64_t n);

/// Replaces numbers by their sums over all ranks.
template <typename Dtype>
void Sum(Dtype* numbers, int n);

/// Replaces numbers by their means over all ranks.
template <typename Dtype>
void Average(Dtype* numbers, int n);

/// The number that rank 0 gives.
int FromFirst(int number);

}  // namespace ranks
}  // namespace caffe

#endif  // CAFFE_RANKS_RANKS_HPP_
