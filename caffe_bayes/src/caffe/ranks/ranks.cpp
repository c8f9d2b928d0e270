#include "caffe/ranks/ranks.hpp"

#include <utility>

namespace caffe {

namespace {

std::unique_ptr<Ranks>& Current() {
  static std::unique_ptr<Ranks> current;
  return current;
}

}  // namespace

Ranks* Ranks::Get() { return Current().get(); }

void Ranks::Set(std::unique_ptr<Ranks> ranks) { Current() = std::move(ranks); }

int Ranks::EndSetUp(bool failed) {
  is_set_up_ = true;
  return static_cast<int>(Smallest(failed ? rank() : count()));
}

namespace ranks {

int Rank() { return Ranks::Get() ? Ranks::Get()->rank() : 0; }

int Count() { return Ranks::Get() ? Ranks::Get()->count() : 1; }

bool IsForAnother(uint64_t record, int batch) {
  return record / batch % Count() != Rank();
}

uint64_t Share(uint64_t batches) {
  return (batches + Count() - 1 - Rank()) / Count();
}

uint64_t FirstOfPart(Phase phase, uint64_t n) {
  return phase == TRAIN ? Rank() * n : 0;
}

template <typename Dtype>
void Sum(Dtype* numbers, int n) {
  if (Count() == 1) return;
  Ranks::Get()->StartSum(numbers, n);
  Ranks::Get()->Wait();
}

template <typename Dtype>
void Average(Dtype* numbers, int n) {
  Sum(numbers, n);
  for (int i = 0; i < n; ++i) numbers[i] /= Count();
}

template void Sum(float* numbers, int n);
template void Sum(double* numbers, int n);
template void Average(float* numbers, int n);
template void Average(double* numbers, int n);

int FromFirst(int number) {
  if (Count() > 1) Ranks::Get()->Broadcast(&number, sizeof(number));
  return number;
}

}  // namespace ranks
}  // namespace caffe
