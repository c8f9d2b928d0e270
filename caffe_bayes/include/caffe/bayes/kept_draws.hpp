#ifndef CAFFE_BAYES_KEPT_DRAWS_HPP_
#define CAFFE_BAYES_KEPT_DRAWS_HPP_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

namespace caffe {
namespace bayes {

/**
 * @brief Weights that were drawn, by the index of the draw, for the next call
 *        to use again, in a bounded memory.
 *
 * A draw depends on its index and on the parameters of the posterior. These are
 * kept too, and compared bit by bit: whatever changed one of them, a solver, a
 * file or a program that writes to a blob, no draw from before is used again.
 */
template <typename Dtype>
class KeptDraws {
 public:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  typedef std::unique_ptr<char, Free> Memory;
  /// The memory of a draw, and whether the draw is in it.
  struct Place {
    Memory memory;
    bool is_drawn = false;
  };
  /// Where parameters are, and how many.
  struct Params {
    const Dtype* data;
    int count;
  };

  /// Memory as a draw needs it; null if there is none.
  static Memory Allocate(size_t bytes);

  /// @param budget the bytes that draws and parameters may take together
  explicit KeptDraws(size_t budget) : budget_(budget) {}

  /// Drops all draws that were not made from these parameters.
  /// @param draw_bytes what one draw takes
  void Update(const std::vector<Params>& params, size_t draw_bytes);

  /// The places of draws, null for those that there is no room for. Draws that
  /// are not asked for make room for those that are. Of two draws with one
  /// index that is not drawn yet, the second has no place.
  std::vector<Place*> Find(const std::vector<uint64_t>& draws);

 private:
  const size_t budget_;
  size_t draw_bytes_ = 0;
  /// How many draws there is room for beside the parameters.
  size_t room_ = 0;
  std::vector<Dtype> params_;
  std::map<uint64_t, Place> places_;
};

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_KEPT_DRAWS_HPP_
