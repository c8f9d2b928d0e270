#include "caffe/layers/bayes_layer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "caffe/bayes/gpu.hpp"
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
  Require(param.draws_per_batch() > 0, layer, "draws_per_batch",
          param.draws_per_batch(), "1 or more");
  if (param.local_reparametrization()) {
    Require(layer.type() == "BayesInnerProduct", layer,
            "local_reparametrization", "true",
            "false in a layer of type " + layer.type() +
                "; draws_per_batch is for any");
    Require(param.draws_per_batch() == 1, layer, "draws_per_batch",
            param.draws_per_batch(),
            "1 with local_reparametrization, which gives each image its own");
  }
}

template <typename Dtype>
void SetZero(Blob<Dtype>* blob) {
  RETURN_IF_GPU(
      caffe_gpu_set(blob->count(), Dtype(0), blob->mutable_gpu_data()));
  caffe_set(blob->count(), Dtype(0), blob->mutable_cpu_data());
}

// Makes `part` a view of the images [first, first + n) of `whole`.
template <typename Dtype>
void ViewPart(Blob<Dtype>* whole, int first, int n, Blob<Dtype>* part) {
  vector<int> shape = whole->shape();
  shape[0] = n;
  part->Reshape(shape);
  const int offset = first * whole->count(1);
  if (Caffe::mode() == Caffe::GPU) {
    part->data()->set_gpu_data(whole->mutable_gpu_data() + offset);
    part->diff()->set_gpu_data(whole->mutable_gpu_diff() + offset);
  } else {
    part->data()->set_cpu_data(whole->mutable_cpu_data() + offset);
    part->diff()->set_cpu_data(whole->mutable_cpu_diff() + offset);
  }
}

}  // namespace

template <template <typename> class Base, typename Dtype>
class BayesLayer<Base, Dtype>::InPlace {
 public:
  InPlace(BayesLayer* layer, Draw* draw) : layer_(layer), draw_(draw) {
    Swap();
  }
  ~InPlace() { Swap(); }

 private:
  void Swap() {
    for (int i = 0; i < layer_->num_stock_blobs_; ++i) {
      layer_->blobs_[i].swap(draw_->weights[i]);
    }
  }
  BayesLayer* layer_;
  Draw* draw_;
};

template <template <typename> class Base, typename Dtype>
class BayesLayer<Base, Dtype>::LearnWeights {
 public:
  explicit LearnWeights(BayesLayer* layer)
      : layer_(layer), learn_(layer->param_propagate_down_) {
    const int n = layer->num_stock_blobs_;
    for (int i = 0; i < n; ++i) {
      layer->param_propagate_down_[i] = learn_[i] || learn_[n + i];
    }
  }
  ~LearnWeights() { layer_->param_propagate_down_ = learn_; }

 private:
  BayesLayer* layer_;
  vector<bool> learn_;
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
  SetDraws(bottom);
  MakePosteriors();
  ProtectParams();
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::SetDraws(const Blobs& bottom) {
  const LayerParameter& layer = this->layer_param_;
  const BayesParameter& param = layer.bayes_param();
  const bool trains = this->phase_ == TRAIN;
  samples_ = param.sample() == BayesParameter_Sample_ALWAYS ||
             (param.sample() == BayesParameter_Sample_TRAIN_ONLY && trains);
  local_ = samples_ && trains && param.local_reparametrization();
  draws_.assign(samples_ && trains ? param.draws_per_batch() : 1, Draw());
  if (draws_.size() > 1) {
    const int axis = layer.has_inner_product_param()
                         ? layer.inner_product_param().axis()
                         : layer.convolution_param().axis();
    Require(bottom[0]->CanonicalAxisIndex(axis) > 0, layer, "draws_per_batch",
            param.draws_per_batch(),
            "1 where axis is 0, which leaves no batch to divide");
  }
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
      // Outputs that are drawn leave it as it is; the solver reads it anyway.
      this->blobs_[2 * n + i]->mutable_cpu_data();
    }
  }
  for (int d = 0; d < draws_.size(); ++d) {
    Draw& draw = draws_[d];
    for (int i = 0; i < n; ++i) {
      const vector<int>& shape = this->blobs_[i]->shape();
      // The first draw's noise is the layer's last blobs.
      shared_ptr<Blob<Dtype> > epsilon = this->blobs_[2 * n + i];
      if (d > 0) epsilon.reset(new Blob<Dtype>(shape));
      draw.posteriors.push_back(bayes::Posterior<Dtype>(
          this->blobs_[i], this->blobs_[n + i], epsilon, param.tau_min()));
      draw.posteriors[i].SetPrior(
          i == 0 ? param.prior_mean() : param.bias_prior_mean(),
          i == 0 ? param.prior_std() : param.bias_prior_std());
      draw.weights.push_back(shared_ptr<Blob<Dtype> >(new Blob<Dtype>(shape)));
    }
    draw.keys.resize(n);
  }
  for (int i = 0; i < n; ++i) NameNoise(i, this->layer_param_.name(), i);
  kl_scales_.assign(n, param.kl_weight() > 0
                           ? Dtype(param.kl_weight()) / param.dataset_size()
                           : Dtype(0));
  this->param_propagate_down_.resize(3 * n, true);
}

// Weights are number 0, biases 1; those of the batch's second part 2 and 3, and
// so on.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::NameNoise(int param_id, const std::string& owner,
                                        int owner_param_id) {
  for (int d = 0; d < draws_.size(); ++d) {
    draws_[d].keys[param_id] = Key(owner, 2 * d + owner_param_id);
  }
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
  NameNoise(param_id, owner, owner_param_id);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::DrawLike(const bayes::Stochastic& original) {
  bayes::Stochastic::DrawLike(original);
  const vector<Draw>& named = dynamic_cast<const BayesLayer&>(original).draws_;
  for (int d = 0; d < draws_.size(); ++d) draws_[d].keys = named[d].keys;
  // Copies may share delta, and must not raise it to its floor all at once.
  for (auto& posterior : draws_[0].posteriors) posterior.RaiseDelta();
}

template <template <typename> class Base, typename Dtype>
bayes::Uncertainty BayesLayer<Base, Dtype>::GetUncertainty() {
  bayes::Uncertainty uncertainty;
  for (int i = 0; i < num_stock_blobs_; ++i) {
    uncertainty.taus.push_back(draws_[0].posteriors[i].Tau());
    // Where another layer owns the parameter, KL is counted there.
    if (!(draws_[0].keys[i] == Key(this->layer_param_.name(), i))) continue;
    const double kl = draws_[0].posteriors[i].KL();
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
template <typename Function>
void BayesLayer<Base, Dtype>::ForEachPart(const Blobs& bottom, const Blobs& top,
                                          Function function) {
  const int images = bottom[0]->shape(0);
  const int parts = std::min<int>(draws_.size(), images);
  if (parts == 1) return function(&draws_[0], bottom, top);
  vector<Blob<Dtype> > views(bottom.size() + top.size());
  Blobs bottom_part, top_part;
  for (int i = 0; i < views.size(); ++i) {
    (i < bottom.size() ? bottom_part : top_part).push_back(&views[i]);
  }
  for (int part = 0; part < parts; ++part) {
    const int first = static_cast<int64_t>(part) * images / parts;
    const int n = static_cast<int64_t>(part + 1) * images / parts - first;
    for (int i = 0; i < bottom.size(); ++i) {
      ViewPart(bottom[i], first, n, bottom_part[i]);
      ViewPart(top[i], first, n, top_part[i]);
    }
    Base<Dtype>::Reshape(bottom_part, top_part);
    function(&draws_[part], bottom_part, top_part);
  }
  Base<Dtype>::Reshape(bottom, top);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::StockForward(const Blobs& bottom,
                                           const Blobs& top) {
  RETURN_IF_GPU(Base<Dtype>::Forward_gpu(bottom, top));
  Base<Dtype>::Forward_cpu(bottom, top);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::StockBackward(const Blobs& top,
                                            const vector<bool>& propagate_down,
                                            const Blobs& bottom) {
  RETURN_IF_GPU(Base<Dtype>::Backward_gpu(top, propagate_down, bottom));
  Base<Dtype>::Backward_cpu(top, propagate_down, bottom);
}

template <template <typename> class Base, typename Dtype>
vector<bayes::KLTerm<Dtype> > BayesLayer<Base, Dtype>::KLTerms(
    const Blobs& top) const {
  vector<bayes::KLTerm<Dtype> > terms(num_stock_blobs_);
  if (!has_kl_top_) return terms;
  SetZero(top.back());
  for (int i = 0; i < num_stock_blobs_; ++i) {
    if (kl_scales_[i] != 0) terms[i] = {kl_scales_[i], top.back()};
  }
  return terms;
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::ForwardOnDevice(const Blobs& bottom,
                                              const Blobs& top) {
  const uint64_t next = TakeDraw();
  if (!held()) index_ = next;
  const vector<bayes::KLTerm<Dtype> > kl = KLTerms(top);
  if (local_) return ForwardLocal(bottom, StockTops(top), kl);
  const auto run = [&](Draw* draw, const Blobs& part, const Blobs& part_top) {
    for (int i = 0; i < num_stock_blobs_; ++i) {
      bayes::Posterior<Dtype>& posterior = draw->posteriors[i];
      Blob<Dtype>* weights = draw->weights[i].get();
      // KL is the batch's, not each part's.
      const bayes::KLTerm<Dtype> term =
          draw == &draws_[0] ? kl[i] : bayes::KLTerm<Dtype>();
      if (held()) {
        posterior.AddKL(term);
      } else if (samples_) {
        posterior.Sample(draw->keys[i], index_, weights, term);
      } else {
        posterior.Mean(weights, term);
      }
    }
    InPlace in_place(this, draw);
    StockForward(part, part_top);
  };
  ForEachPart(bottom, StockTops(top), run);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::ForwardLocal(
    const Blobs& bottom, const Blobs& top,
    const vector<bayes::KLTerm<Dtype> >& kl) {
  StockForward(bottom, top);
  squares_.ReshapeLike(*bottom[0]);
  variances_.ReshapeLike(*top[0]);
  noise_.ReshapeLike(*top[0]);
  bayes::Square(*bottom[0], &squares_);
  Draw& draw = draws_[0];
  for (int i = 0; i < num_stock_blobs_; ++i) {
    draw.posteriors[i].Variance(draw.weights[i].get(), kl[i]);
  }
  {
    InPlace in_place(this, &draw);
    StockForward(Blobs(1, &squares_), Blobs(1, &variances_));
  }
  // Layers that share weights have outputs of their own.
  bayes::SampleOutput(Key(this->layer_param_.name(), 0), index_, variances_,
                      &noise_, top[0]);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::BackwardOnDevice(
    const Blobs& top, const vector<bool>& propagate_down, const Blobs& bottom) {
  if (local_) return BackwardLocal(StockTops(top), propagate_down, bottom);
  const int n = num_stock_blobs_;
  const vector<bool> learn = this->param_propagate_down_;
  const auto run = [&](Draw* draw, const Blobs& part, const Blobs& part_top) {
    {
      InPlace in_place(this, draw);
      LearnWeights learn_weights(this);
      StockBackward(part_top, propagate_down, part);
    }
    for (int i = 0; i < n; ++i) {
      // KL is the batch's, not each part's.
      const Dtype kl_scale = draw == &draws_[0] ? kl_scales_[i] : Dtype(0);
      draw->posteriors[i].Backward(draw->weights[i].get(), kl_scale, learn[i],
                                   learn[n + i]);
    }
  };
  ForEachPart(bottom, StockTops(top), run);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::BackwardLocal(const Blobs& top,
                                            const vector<bool>& propagate_down,
                                            const Blobs& bottom) {
  const int n = num_stock_blobs_;
  // By way of the outputs' means, straight into the gradient of m.
  StockBackward(top, propagate_down, bottom);
  // By way of their variances.
  bayes::SampleOutputBackward(*top[0], noise_, &variances_);
  Draw& draw = draws_[0];
  const vector<bool> learn = this->param_propagate_down_;
  {
    InPlace in_place(this, &draw);
    LearnWeights learn_weights(this);
    StockBackward(Blobs(1, &variances_), propagate_down, Blobs(1, &squares_));
  }
  if (propagate_down[0]) bayes::SquareBackward(squares_, bottom[0]);
  for (int i = 0; i < n; ++i) {
    draw.posteriors[i].BackwardVariance(draw.weights[i].get(), kl_scales_[i],
                                        learn[i], learn[n + i]);
  }
}

INSTANTIATE_CLASS(BayesConvolutionLayer);
INSTANTIATE_CLASS(BayesDeconvolutionLayer);
INSTANTIATE_CLASS(BayesInnerProductLayer);
REGISTER_LAYER_CLASS(BayesConvolution);
REGISTER_LAYER_CLASS(BayesDeconvolution);
REGISTER_LAYER_CLASS(BayesInnerProduct);

}  // namespace caffe
