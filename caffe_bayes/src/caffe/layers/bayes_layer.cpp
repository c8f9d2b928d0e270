#include "caffe/layers/bayes_layer.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/engine/engine.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {

namespace {

// Stops with the layer, the field, its value and what is allowed.
template <typename Value>
void Require(bool holds, const LayerParameter& layer, const char* field,
             const Value& value, const std::string& allowed) {
  CHECK(holds) << "layer '" << layer.name() << "': bayes_param." << field
               << " is " << value << ", but must be " << allowed;
}

void CheckBayesParam(const LayerParameter& layer) {
  const BayesParameter& param = layer.bayes_param();
  const auto finite = [&](const char* field, float value) {
    Require(std::isfinite(value), layer, field, value, "a finite number");
  };
  const auto positive = [&](const char* field, float value) {
    Require(value > 0 && std::isfinite(value), layer, field, value,
            "a finite number greater than 0");
  };
  finite("prior_mean", param.prior_mean());
  finite("bias_prior_mean", param.bias_prior_mean());
  positive("prior_std", param.prior_std());
  positive("bias_prior_std", param.bias_prior_std());
  positive("tau_min", param.tau_min());
  const auto above_floor = [&](const char* field, float value) {
    Require(value >= param.tau_min() && std::isfinite(value), layer, field,
            value,
            "a finite number not below tau_min = " +
                std::to_string(param.tau_min()));
  };
  above_floor("tau_init", param.tau_init());
  above_floor("bias_tau_init", param.bias_tau_init());
  Require(param.kl_weight() >= 0 && std::isfinite(param.kl_weight()), layer,
          "kl_weight", param.kl_weight(), "a finite number, 0 or greater");
  if (param.kl_weight() > 0) {
    Require(param.has_dataset_size(), layer, "dataset_size", "missing",
            "the number of training examples, unless kl_weight is 0");
    Require(param.dataset_size() > 0, layer, "dataset_size",
            param.dataset_size(), "the number of training examples, 1 or more");
  }
}

}  // namespace

template <template <typename> class Base, typename Dtype>
class BayesLayer<Base, Dtype>::SampleInPlace {
 public:
  explicit SampleInPlace(BayesLayer* layer) : layer_(layer) { Swap(); }
  ~SampleInPlace() { Swap(); }

 private:
  void Swap() {
    for (int i = 0; i < layer_->num_stock_blobs_; ++i) {
      layer_->blobs_[i].swap(layer_->sampled_[i]);
    }
  }
  BayesLayer* layer_;
};

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                                         const vector<Blob<Dtype>*>& top) {
  const LayerParameter& param = this->layer_param_;
  CheckBayesParam(param);
  CHECK(top.size() == bottom.size() || top.size() == bottom.size() + 1)
      << "layer '" << param.name() << "' has " << bottom.size()
      << " bottoms and " << top.size()
      << " tops; it takes one top for each bottom, and one more for KL if "
         "wanted";
  has_kl_top_ = top.size() > bottom.size();
  if (has_kl_top_ && param.loss_weight_size() == top.size()) {
    const float weight = param.loss_weight(top.size() - 1);
    CHECK(weight == 0 || weight == 1)
        << "layer '" << param.name() << "': the loss_weight of its KL top is "
        << weight << ", but must be 0 or 1; bayes_param.kl_weight scales KL";
  }
  // The stock layer sets up its own blobs, and would refuse others beside them.
  // A net that was saved with its weights brings all of them.
  vector<shared_ptr<Blob<Dtype> > > given = this->blobs_;
  if (given.size() % 3 == 0) this->blobs_.resize(given.size() / 3);
  Base<Dtype>::LayerSetUp(bottom, StockTops(top));
  num_stock_blobs_ = this->blobs_.size();
  for (int i = num_stock_blobs_; i < given.size(); ++i) {
    this->blobs_.push_back(given[i]);
  }
  MakePosteriors();
  ProtectParams();
  const BayesParameter& bayes_param = param.bayes_param();
  samples_ = bayes_param.sample() == BayesParameter_Sample_ALWAYS ||
             (bayes_param.sample() == BayesParameter_Sample_TRAIN_ONLY &&
              this->phase_ == TRAIN);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::MakePosteriors() {
  const BayesParameter& param = this->layer_param_.bayes_param();
  const int n = num_stock_blobs_;
  if (this->blobs_.size() == n) {
    this->blobs_.resize(3 * n);
    for (int i = 0; i < n; ++i) {
      const Dtype tau = i == 0 ? param.tau_init() : param.bias_tau_init();
      this->blobs_[n + i].reset(new Blob<Dtype>(vector<int>(1, 1)));
      this->blobs_[n + i]->mutable_cpu_data()[0] = bayes::SoftplusInverse(tau);
      this->blobs_[2 * n + i].reset(new Blob<Dtype>(this->blobs_[i]->shape()));
    }
  }
  posteriors_.clear();
  sampled_.clear();
  keys_.clear();
  for (int i = 0; i < n; ++i) {
    posteriors_.push_back(
        bayes::Posterior<Dtype>(this->blobs_[i], this->blobs_[n + i],
                                this->blobs_[2 * n + i], param.tau_min()));
    posteriors_[i].SetPrior(
        i == 0 ? param.prior_mean() : param.bias_prior_mean(),
        i == 0 ? param.prior_std() : param.bias_prior_std());
    sampled_.push_back(
        shared_ptr<Blob<Dtype> >(new Blob<Dtype>(this->blobs_[i]->shape())));
    keys_.push_back(Key(this->layer_param_.name(), i));
  }
  kl_scales_.assign(n, param.kl_weight() > 0
                           ? Dtype(param.kl_weight()) / param.dataset_size()
                           : Dtype(0));
  this->param_propagate_down_.resize(3 * n, true);
}

// The net takes learning rates and decay from here, after the prototxt's.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::ProtectParams() {
  LayerParameter& param = this->layer_param_;
  while (param.param_size() < 3 * num_stock_blobs_) param.add_param();
  for (int i = num_stock_blobs_; i < 3 * num_stock_blobs_; ++i) {
    param.mutable_param(i)->set_decay_mult(0);
    if (i >= 2 * num_stock_blobs_) param.mutable_param(i)->set_lr_mult(0);
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::OnParamShared(int param_id,
                                            const std::string& owner,
                                            int owner_param_id) {
  if (param_id >= num_stock_blobs_) return;
  kl_scales_[param_id] = 0;
  keys_[param_id] = Key(owner, owner_param_id);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::DrawLike(const bayes::Stochastic& original) {
  bayes::Stochastic::DrawLike(original);
  keys_ = dynamic_cast<const BayesLayer&>(original).keys_;
  // Copies may share delta, and must not raise it to its floor all at once.
  for (bayes::Posterior<Dtype>& posterior : posteriors_) posterior.Tau();
}

template <template <typename> class Base, typename Dtype>
bayes::Uncertainty BayesLayer<Base, Dtype>::GetUncertainty() {
  bayes::Uncertainty uncertainty;
  for (int i = 0; i < num_stock_blobs_; ++i) {
    uncertainty.taus.push_back(posteriors_[i].Tau());
    // Where another layer owns the parameter, KL is counted there.
    if (!(keys_[i] == Key(this->layer_param_.name(), i))) continue;
    const double kl = posteriors_[i].KL();
    uncertainty.kl += kl;
    uncertainty.kl_term += kl_scales_[i] * kl;
  }
  return uncertainty;
}

template <template <typename> class Base, typename Dtype>
vector<Blob<Dtype>*> BayesLayer<Base, Dtype>::StockTops(
    const vector<Blob<Dtype>*>& top) const {
  return vector<Blob<Dtype>*>(top.begin(), top.end() - has_kl_top_);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::Reshape(const vector<Blob<Dtype>*>& bottom,
                                      const vector<Blob<Dtype>*>& top) {
  Base<Dtype>::Reshape(bottom, StockTops(top));
  if (has_kl_top_) top.back()->Reshape(vector<int>());
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                                          const vector<Blob<Dtype>*>& top) {
  const uint64_t draw = TakeDraw();
  for (int i = 0; i < num_stock_blobs_ && !held(); ++i) {
    if (samples_) {
      posteriors_[i].Sample(keys_[i], draw, sampled_[i].get());
    } else {
      posteriors_[i].Mean(sampled_[i].get());
    }
  }
  {
    SampleInPlace in_place(this);
    Base<Dtype>::Forward_cpu(bottom, StockTops(top));
  }
  if (has_kl_top_) {
    Dtype kl = 0;
    for (int i = 0; i < num_stock_blobs_; ++i) {
      if (kl_scales_[i] != 0) kl += kl_scales_[i] * posteriors_[i].KL();
    }
    top.back()->mutable_cpu_data()[0] = kl;
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::Backward_cpu(const vector<Blob<Dtype>*>& top,
                                           const vector<bool>& propagate_down,
                                           const vector<Blob<Dtype>*>& bottom) {
  const int n = num_stock_blobs_;
  const vector<bool> learn = this->param_propagate_down_;
  for (int i = 0; i < n; ++i) {
    // Both m and delta learn from the gradient of the sample.
    this->param_propagate_down_[i] = learn[i] || learn[n + i];
    engine::SetZero(sampled_[i]->count(), sampled_[i]->mutable_cpu_diff());
  }
  {
    SampleInPlace in_place(this);
    Base<Dtype>::Backward_cpu(StockTops(top), propagate_down, bottom);
  }
  this->param_propagate_down_ = learn;
  for (int i = 0; i < n; ++i) {
    posteriors_[i].Backward(*sampled_[i], kl_scales_[i], learn[i],
                            learn[n + i]);
  }
}

INSTANTIATE_CLASS(BayesConvolutionLayer);
INSTANTIATE_CLASS(BayesDeconvolutionLayer);
INSTANTIATE_CLASS(BayesInnerProductLayer);
REGISTER_LAYER_CLASS(BayesConvolution);
REGISTER_LAYER_CLASS(BayesDeconvolution);
REGISTER_LAYER_CLASS(BayesInnerProduct);

}  // namespace caffe
