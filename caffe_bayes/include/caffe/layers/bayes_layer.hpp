#ifndef CAFFE_BAYES_LAYER_HPP_
#define CAFFE_BAYES_LAYER_HPP_

#include <string>
#include <vector>

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/bayes/loading.hpp"
#include "caffe/bayes/posterior.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/blob.hpp"
#include "caffe/layer.hpp"
#include "caffe/layers/conv_layer.hpp"
#include "caffe/layers/deconv_layer.hpp"
#include "caffe/layers/embed_layer.hpp"
#include "caffe/layers/inner_product_layer.hpp"
#include "caffe/layers/scale_layer.hpp"
#include "caffe/proto/caffe.pb.h"

namespace caffe {

/**
 * @brief Makes a stock layer Bayesian: its parameters become random, and the
 *        layer learns their posterior by variational inference.
 *
 * Each Forward draws one set of weights, w = m (1 + tau epsilon), and lets the
 * stock layer compute with it; Backward turns the gradient of w into those of
 * m and delta and adds kl_weight / dataset_size times that of KL(q || p). So
 * with a loss that is the mean over a batch, the solver minimises
 *   mean loss + kl_weight / dataset_size * KL(q || p),
 * where the factor of KL can rise from 0 at the start of training (kl_ramp).
 * In TRAIN the batch can be divided into parts with a draw each
 * (draws_per_batch), or each image can have noise of its own (local
 * reparametrisation). The formulas are in bayes/formulas.hpp, the options in
 * caffe.proto, message BayesParameter.
 *
 * Blobs (without a bias term: m, delta, epsilon):
 *   -# m, m_b              the means: a stock layer's weights and biases
 *   -# delta, delta_b      tau = softplus(delta); one number each, or one for
 *                          each output or weight: they have as many axes as
 *                          the means, of which some have length 1; not decayed
 *   -# epsilon, epsilon_b  the noise of the latest draw; not learned, and saved
 *                          only on request
 *
 * @param top the stock layer's, then optionally one more: a single number,
 *   KL(q || p) * kl_weight / dataset_size. With loss_weight 1 the displayed
 *   loss is the whole objective; the gradient is the same without it.
 *
 * Where param names share m between layers of a net, these layers draw the
 * same weights, and KL counts for the layer that the net makes the owner.
 */
template <template <typename> class Base, typename Dtype>
class BayesLayer : public Base<Dtype>, public bayes::Stochastic {
 public:
  explicit BayesLayer(const LayerParameter& param)
      : Base<Dtype>(bayes::WithoutUnsavedNoise(param)),
        num_given_blobs_(param.blobs_size()) {}
  void LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                  const vector<Blob<Dtype>*>& top) override;
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override;
  void ToProto(LayerParameter* param, bool write_diff = false) override;

  int ExactNumTopBlobs() const override { return -1; }
  int MinTopBlobs() const override { return 1; }
  bool EqualNumBottomTopBlobs() const override { return false; }

  bool IsRandom() const override { return samples_; }
  size_t draw_bytes() const override;
  void PlaceDraw(void* place, bool is_drawn) override;
  void DrawLike(const bayes::Stochastic& original) override;
  int num_noise_blobs() const override { return num_stock_blobs_; }
  int kl_top() const override { return kl_top_; }
  bayes::Uncertainty GetUncertainty() override;
  std::vector<double> GetTaus(int param_id) override;
  int64_t num_weights() const override;
  void OnNetSetUp(int64_t weights) override;
  void OnParamShared(int param_id, const std::string& owner,
                     int owner_param_id) override;

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    ForwardOnDevice(bottom, top);
    CheckKL(top);
  }
  void Forward_gpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    ForwardOnDevice(bottom, top);
  }
  void Backward_cpu(const vector<Blob<Dtype>*>& top,
                    const vector<bool>& propagate_down,
                    const vector<Blob<Dtype>*>& bottom) override {
    BackwardOnDevice(top, propagate_down, bottom);
  }
  void Backward_gpu(const vector<Blob<Dtype>*>& top,
                    const vector<bool>& propagate_down,
                    const vector<Blob<Dtype>*>& bottom) override {
    BackwardOnDevice(top, propagate_down, bottom);
  }

 private:
  typedef vector<Blob<Dtype>*> Blobs;

  /// One draw of the parameters. There is one for the whole batch, or one for
  /// each part of it; they share the means and delta, and differ in the noise.
  struct Draw {
    /// One for each of the stock layer's parameter blobs.
    vector<bayes::Posterior<Dtype> > posteriors;
    /// The weights drawn, or their variances where outputs are drawn.
    vector<shared_ptr<Blob<Dtype> > > weights;
    /// The names of the noise.
    vector<bayes::NoiseKey> keys;
  };
  /// Whether m, delta, or either of them, learns, for each parameter.
  struct Learned {
    vector<bool> m, delta, either;
  };
  Learned Learns() const;

  /// Puts a draw's weights in place of the means while it lives.
  class DrawnWeights;

  void SetUpStockLayer(const Blobs& bottom, const Blobs& top);
  void SetUpDraws();
  void MakeBlobs();
  /// The shape of a parameter's delta, which bayes_param.posterior tells.
  vector<int> DeltaShape(int param_id) const;
  void MakePosteriors();
  void ProtectParams();
  void NameNoise(int param_id, const std::string& owner, int owner_param_id);
  Blobs StockTops(const Blobs& top) const;
  /// Calls function(draw, bottom, top) for each draw and its part of the batch.
  template <typename Function>
  void ForEachPart(const Blobs& bottom, const Blobs& top, Function function);
  /// How much of KL counts in the latest Forward: less than 1 during the ramp.
  Dtype KLShare() const;
  /// The factor on a parameter's KL.
  Dtype KLScale(int param_id) const {
    return owns_[param_id] ? kl_scale_ * KLShare() : Dtype(0);
  }
  /// Clears the KL top, if there is one, and tells what is to be added to it.
  vector<bayes::KLTerm<Dtype> > KLTerms(const Blobs& top) const;
  /// Refuses NaN and infinity in the KL top, if there is one. Not on a GPU,
  /// which would have to be waited for.
  void CheckKL(const Blobs& top) const;
  /// Whether the batch is divided and the layer writes where its input is.
  bool DividesInPlace(const Blobs& bottom, const Blobs& top) const {
    return draws_.size() > 1 && bottom[0] == top[0];
  }

  // These compute on the device of Caffe's mode.
  void StockForward(const Blobs& bottom, const Blobs& top);
  /// @param learn whether the gradient by each parameter blob is wanted
  void StockBackward(const Blobs& top, const vector<bool>& propagate_down,
                     const Blobs& bottom, const vector<bool>& learn);
  void ForwardOnDevice(const Blobs& bottom, const Blobs& top);
  void BackwardOnDevice(const Blobs& top, const vector<bool>& propagate_down,
                        const Blobs& bottom);
  /// Whether BackwardInStrips is for the weights, and not the stock layer.
  bool HasStrips(const Draw& draw) const;
  /// The gradients of an inner product's many weights.
  void BackwardInStrips(Draw* draw, const Blob<Dtype>& top,
                        const Blob<Dtype>& bottom, Dtype kl_scale,
                        const Learned& learned) const;
  void ForwardLocal(const Blobs& bottom, const Blobs& top,
                    const vector<bayes::KLTerm<Dtype> >& kl);
  void BackwardLocal(const Blobs& top, const vector<bool>& propagate_down,
                     const Blobs& bottom);

  /// How many blobs the layer's parameter brought, unsaved noise included.
  const int num_given_blobs_;
  /// The stock layer's number of parameter blobs: 2, or 1 without a bias term.
  int num_stock_blobs_ = 0;
  vector<Draw> draws_;
  /// These hold the means' memory while drawn weights are in their place.
  vector<shared_ptr<Blob<Dtype> > > means_;
  /// The index of the latest draw.
  uint64_t index_ = 0;
  /// Whether the weights are those of the draw before the layer draws them.
  bool is_drawn_ = false;
  /// kl_weight / dataset_size, or the default for the net's weights.
  Dtype kl_scale_ = 0;
  /// Whether a parameter is this layer's, and not one that it shares.
  vector<bool> owns_;
  /// Whether weights are drawn, or the means used as they are.
  bool samples_ = false;
  /// Which top is KL, -1 if none.
  int kl_top_ = -1;
  /// Whether outputs are drawn in place of weights.
  bool local_ = false;
  /// Then: the squares of the input, the variances of the output, their noise.
  Blob<Dtype> squares_, variances_, noise_;
  /// Where DividesInPlace: the input.
  Blob<Dtype> input_;
};

/**
 * The layers that a prototxt can name, "Bayes" and then the stock layer's name.
 * A line is all that a stock layer needs to become Bayesian:
 *   -# the stock layer, without "Layer"
 *   -# LayerTrait::first_axis, with the layer's LayerParameter as `param`
 *   -# LayerTrait::has_independent_outputs
 *   -# LayerTrait::output_axis
 */
// clang-format off
#define BAYES_LAYERS(LAYER)                                                    \
  LAYER(Convolution, param.convolution_param().axis(), false, 0)               \
  LAYER(Deconvolution, param.convolution_param().axis(), false,                \
        param.convolution_param().group() == 1 ? 1 : bayes::kNoOutputAxis)     \
  LAYER(Embed, bayes::kNoAxis, false, 1)                                       \
  LAYER(InnerProduct, param.inner_product_param().axis(), true,                \
        param.inner_product_param().transpose() ? 1 : 0)                       \
  LAYER(Scale, bayes::AxisUnlessScalar(param, param.scale_param()), false,     \
        bayes::kEachWeight)
// clang-format on

#define DECLARE_BAYES_LAYER(name, axis, independent, output_axis)    \
  template <typename Dtype>                                          \
  class Bayes##name##Layer : public BayesLayer<name##Layer, Dtype> { \
   public:                                                           \
    static constexpr char kType[] = "Bayes" #name;                   \
    explicit Bayes##name##Layer(const LayerParameter& param)         \
        : BayesLayer<name##Layer, Dtype>(param) {}                   \
    const char* type() const override { return kType; }              \
  };
BAYES_LAYERS(DECLARE_BAYES_LAYER)
#undef DECLARE_BAYES_LAYER

}  // namespace caffe

#endif  // CAFFE_BAYES_LAYER_HPP_
