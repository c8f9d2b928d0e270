#ifndef CAFFE_BAYES_STOCHASTIC_HPP_
#define CAFFE_BAYES_STOCHASTIC_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "caffe/bayes/noise.hpp"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

/// The taus of a parameter blob: one for all weights, or one for each group.
/// NaN if one of them is.
struct TauSummary {
  double median = 0, lowest = 0, highest = 0;
};

/// How uncertain a layer is of its parameters.
struct Uncertainty {
  /// tau of each parameter blob that has a posterior: weights, then biases.
  std::vector<TauSummary> taus;
  /// KL(q || p) of all that the layer owns.
  double kl = 0;
  /// The factor with which it enters the objective after the ramp of KL.
  double kl_scale = 0;
  /// How much of that counts now: less than 1 during the ramp.
  double kl_share = 1;
  /// What KL adds to the objective now.
  double kl_term() const { return kl_share * kl_scale * kl; }
};

/**
 * @brief What a layer has whose output depends on named noise: a draw index.
 *
 * Each Forward uses one draw and leaves the next one to the Forward after it.
 * Draw k of a net, under one seed, is one definite network.
 */
class Stochastic {
 public:
  virtual ~Stochastic() {}

  /// The next Forward uses this draw.
  void SetDraw(uint64_t draw) {
    next_draw_ = draw;
    draw_is_named_ = true;
  }

  /// Whether the output depends on the draw. A layer may know how to draw and
  /// not be asked to.
  virtual bool IsRandom() const { return true; }

  /// Whether the Forwards from here on have the draw of the one before them, so
  /// that what was drawn can be used again.
  void Hold(bool hold) { held_ = hold; }

  /// How many bytes a draw of this layer takes that can be used again; 0 if
  /// none can.
  virtual size_t draw_bytes() const { return 0; }

  /// Puts the draws from here on at `place`, which has draw_bytes() and is
  /// aligned as vectors are. With `is_drawn` the draw is there already.
  virtual void PlaceDraw(void* /*place*/, bool /*is_drawn*/) {}

  /// Makes this layer draw what `original` draws, of which it is a copy.
  virtual void DrawLike(const Stochastic& original) { seed_ = original.seed_; }

  /// How many of the layer's last blobs are noise, and no parameters.
  virtual int num_noise_blobs() const { return 0; }

  /// Which of the layer's tops is KL, -1 if none.
  virtual int kl_top() const { return -1; }

  /// How uncertain the layer is of its parameters, if these have a posterior.
  virtual Uncertainty GetUncertainty() { return Uncertainty(); }

  /// All taus of a parameter blob, in the order of its delta.
  virtual std::vector<double> GetTaus(int /*param_id*/) { return {}; }

  /// How many weights with a posterior the layer owns.
  virtual int64_t num_weights() const { return 0; }

  /// Called by the net when all of its layers are set up.
  /// @param weights how many weights of all of them have a posterior
  virtual void OnNetSetUp(int64_t /*weights*/) {}

  /// Called by the net where this layer does not own its parameter `param_id`,
  /// but shares the parameter `owner_param_id` of the layer `owner`.
  virtual void OnParamShared(int /*param_id*/, const std::string& /*owner*/,
                             int /*owner_param_id*/) {}

 protected:
  /// The name of a layer's noise for one of its blobs, under the seed that was
  /// in force when this layer was made.
  NoiseKey Key(const std::string& layer, int blob) const {
    return MakeNoiseKey(seed_, layer, blob);
  }
  uint64_t TakeDraw() { return next_draw_++; }
  /// Whether the solver or a program has set the draw to use.
  bool draw_is_named() const { return draw_is_named_; }
  bool held() const { return held_; }

 private:
  uint32_t seed_ = Caffe::random_seed();
  uint64_t next_draw_ = 0;
  bool draw_is_named_ = false;
  bool held_ = false;
};

/// Makes the next Forward of a net use the draw `draw`, the one after it the
/// next draw, and so on.
template <typename Net>
void SetDraw(const Net& net, uint64_t draw) {
  for (const auto& layer : net.layers()) {
    Stochastic* stochastic = dynamic_cast<Stochastic*>(layer.get());
    if (stochastic) stochastic->SetDraw(draw);
  }
}

/// Tells all layers of a net whether to keep what they drew.
template <typename Net>
void Hold(const Net& net, bool hold) {
  for (const auto& layer : net.layers()) {
    Stochastic* stochastic = dynamic_cast<Stochastic*>(layer.get());
    if (stochastic) stochastic->Hold(hold);
  }
}

/// Tells each layer of a net how many weights of the net have a posterior.
template <typename Layers>
void TellNumWeights(const Layers& layers) {
  std::vector<Stochastic*> found;
  int64_t weights = 0;
  for (const auto& layer : layers) {
    Stochastic* stochastic = dynamic_cast<Stochastic*>(layer.get());
    if (!stochastic) continue;
    found.push_back(stochastic);
    weights += stochastic->num_weights();
  }
  for (Stochastic* stochastic : found) stochastic->OnNetSetUp(weights);
}

struct LayerUncertainty {
  std::string name;
  Uncertainty uncertainty;
};

/// The uncertainty of each layer whose parameters have a posterior.
template <typename Net>
std::vector<LayerUncertainty> Uncertainties(const Net& net) {
  std::vector<LayerUncertainty> found;
  for (const auto& layer : net.layers()) {
    Stochastic* stochastic = dynamic_cast<Stochastic*>(layer.get());
    if (!stochastic) continue;
    const Uncertainty uncertainty = stochastic->GetUncertainty();
    if (uncertainty.taus.empty()) continue;
    found.push_back({layer->layer_param().name(), uncertainty});
  }
  return found;
}

/// A layer that can go on where a training was interrupted.
class Resumable {
 public:
  virtual ~Resumable() {}
  /// Puts the layer where it is after this many calls of Forward.
  virtual void SkipForwards(uint64_t forwards) = 0;
};

/// Makes a newly loaded net go on as if it had run `forwards` times.
template <typename Net>
void ResumeAt(const Net& net, uint64_t forwards) {
  SetDraw(net, forwards);
  for (const auto& layer : net.layers()) {
    Resumable* resumable = dynamic_cast<Resumable*>(layer.get());
    if (resumable) resumable->SkipForwards(forwards);
  }
}

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_STOCHASTIC_HPP_
