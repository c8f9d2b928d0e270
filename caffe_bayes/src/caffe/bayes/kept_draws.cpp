#include "caffe/bayes/kept_draws.hpp"

#include <atomic>
#include <cstring>
#include <set>

#include "caffe/engine/team.hpp"

namespace caffe {
namespace bayes {

template <typename Dtype>
typename KeptDraws<Dtype>::Memory KeptDraws<Dtype>::Allocate(size_t bytes) {
  const size_t kAlignment = 64;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return Memory(static_cast<char*>(std::aligned_alloc(kAlignment, bytes)));
}

template <typename Dtype>
void KeptDraws<Dtype>::Update(const std::vector<Params>& params,
                              size_t draw_bytes) {
  size_t count = 0;
  for (const Params& some : params) count += some.count;
  const size_t bytes = count * sizeof(Dtype);
  room_ =
      draw_bytes == 0 || bytes > budget_ ? 0 : (budget_ - bytes) / draw_bytes;
  if (room_ == 0) {
    places_.clear();
    return;
  }
  std::atomic<bool> same(count == params_.size() && draw_bytes == draw_bytes_);
  draw_bytes_ = draw_bytes;
  params_.resize(count);
  Dtype* kept = params_.data();
  for (const Params& some : params) {
    engine::ParallelPortions(some.count, [&](int, int first, int n) {
      const size_t size = n * sizeof(Dtype);
      if (std::memcmp(kept + first, some.data + first, size) == 0) return;
      same = false;
      std::memcpy(kept + first, some.data + first, size);
    });
    kept += some.count;
  }
  if (!same) places_.clear();
}

template <typename Dtype>
std::vector<typename KeptDraws<Dtype>::Place*> KeptDraws<Dtype>::Find(
    const std::vector<uint64_t>& draws) {
  const std::set<uint64_t> wanted(draws.begin(), draws.end());
  size_t missing = 0;
  for (uint64_t draw : wanted) missing += !places_.count(draw);
  for (auto place = places_.begin(); place != places_.end();) {
    // What an error left without its draw is of no use either.
    const bool leaves =
        !place->second.is_drawn ||
        (places_.size() + missing > room_ && !wanted.count(place->first));
    place = leaves ? places_.erase(place) : std::next(place);
  }
  std::vector<Place*> found;
  for (uint64_t draw : draws) {
    const auto there = places_.find(draw);
    if (there != places_.end()) {
      Place& place = there->second;
      found.push_back(place.is_drawn ? &place : nullptr);
      continue;
    }
    Place place;
    if (places_.size() < room_) place.memory = Allocate(draw_bytes_);
    found.push_back(place.memory ? &(places_[draw] = std::move(place))
                                 : nullptr);
  }
  return found;
}

template class KeptDraws<float>;
template class KeptDraws<double>;

}  // namespace bayes
}  // namespace caffe
