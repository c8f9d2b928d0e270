#ifndef CAFFE_BAYES_LAYER_HPP_
#define CAFFE_BAYES_LAYER_HPP_

#include <string>
#include <vector>

#include "caffe/bayes/posterior.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/blob.hpp"
#include "caffe/layer.hpp"
#include "caffe/layers/conv_layer.hpp"
#include "caffe/layers/deconv_layer.hpp"
#include "caffe/layers/inner_product_layer.hpp"
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
 *   mean loss + kl_weight / dataset_size * KL(q || p).
 * In TRAIN the images of a batch can have noise of their own, in parts that
 * draws_per_batch sets or, by local reparametrisation, each image.
 * The formulas are in bayes/formulas.hpp, the options in caffe.proto, message
 * BayesParameter.
 *
 * Blobs (without a bias term: m, delta, epsilon):
 *   -# m, m_b              the means: a stock layer's weights and biases
 *   -# delta, delta_b      one number each, tau = softplus(delta); not decayed
 *   -# epsilon, epsilon_b  the noise of the latest draw; not learned
 *
 * @param top the stock layer's, then optionally one more: a single number,
 *   KL(q || p) * kl_weight / dataset_size. With loss_weight 1 the displayed
 *   loss is the whole objective; the gradient is the same without.
 *
 * Where param names share m between layers of a net, these layers draw the
 * same weights, and KL counts once.
 */
template <template <typename> class Base, typename Dtype>
class BayesLayer : public Base<Dtype>, public bayes::Stochastic {
 public:
  explicit BayesLayer(const LayerParameter& param) : Base<Dtype>(param) {}
  void LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                  const vector<Blob<Dtype>*>& top) override;
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override;

  int ExactNumTopBlobs() const override { return -1; }
  int MinTopBlobs() const override { return 1; }
  bool EqualNumBottomTopBlobs() const override { return false; }

  bool IsRandom() const override { return samples_; }
  void DrawLike(const bayes::Stochastic& original) override;
  int num_noise_blobs() const override { return num_stock_blobs_; }
  bayes::Uncertainty GetUncertainty() override;
  void OnParamShared(int param_id, const std::string& owner,
                     int owner_param_id) override;

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    ForwardOnDevice(bottom, top);
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
  /// Exchanges the means for a draw's weights in blobs_ while it lives.
  class InPlace;
  /// Asks the stock layer for the gradients by the weights, while it lives,
  /// where m or delta is to learn from them.
  class LearnWeights;

  void SetDraws(const Blobs& bottom);
  void MakePosteriors();
  void ProtectParams();
  void NameNoise(int param_id, const std::string& owner, int owner_param_id);
  Blobs StockTops(const Blobs& top) const;
  /// Calls function(draw, bottom, top) for each draw and its part of the batch.
  template <typename Function>
  void ForEachPart(const Blobs& bottom, const Blobs& top, Function function);
  /// Clears the top for KL, if there is one, and says what is to be added.
  vector<bayes::KLTerm<Dtype> > KLTerms(const Blobs& top) const;

  // On the device that Caffe's mode says.
  void StockForward(const Blobs& bottom, const Blobs& top);
  void StockBackward(const Blobs& top, const vector<bool>& propagate_down,
                     const Blobs& bottom);
  void ForwardOnDevice(const Blobs& bottom, const Blobs& top);
  void BackwardOnDevice(const Blobs& top, const vector<bool>& propagate_down,
                        const Blobs& bottom);
  void ForwardLocal(const Blobs& bottom, const Blobs& top,
                    const vector<bayes::KLTerm<Dtype> >& kl);
  void BackwardLocal(const Blobs& top, const vector<bool>& propagate_down,
                     const Blobs& bottom);

  /// The stock layer's number of parameter blobs: 2, or 1 without a bias term.
  int num_stock_blobs_;
  vector<Draw> draws_;
  /// The index of the latest draw.
  uint64_t index_;
  /// The factor on each one's KL: kl_weight / dataset_size, or 0 where another
  /// layer owns the parameter.
  vector<Dtype> kl_scales_;
  /// Whether weights are drawn, or the means used as they are.
  bool samples_;
  /// Whether the last top is KL.
  bool has_kl_top_;
  /// Whether outputs are drawn in place of weights.
  bool local_;
  /// Then: the squares of the input, the variances of the output, their noise.
  Blob<Dtype> squares_, variances_, noise_;
};

// The layers that a prototxt can name.
#define BAYES_LAYER(name)                                            \
  template <typename Dtype>                                          \
  class Bayes##name##Layer : public BayesLayer<name##Layer, Dtype> { \
   public:                                                           \
    explicit Bayes##name##Layer(const LayerParameter& param)         \
        : BayesLayer<name##Layer, Dtype>(param) {}                   \
    const char* type() const override { return "Bayes" #name; }      \
  }

BAYES_LAYER(Convolution);
BAYES_LAYER(Deconvolution);
BAYES_LAYER(InnerProduct);

#undef BAYES_LAYER

}  // namespace caffe

#endif  // CAFFE_BAYES_LAYER_HPP_
