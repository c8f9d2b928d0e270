#include "caffe/layers/bayes_layer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "caffe/bayes/batch_parts.hpp"
#include "caffe/bayes/bayes_param.hpp"
#include "caffe/bayes/gpu.hpp"
#include "caffe/bayes/posterior_log.hpp"
#include "caffe/bayes/prior_file.hpp"
#include "caffe/engine/engine.hpp"
#include "caffe/engine/large_arrays.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/ranks/ranks.hpp"
#include "caffe/util/math_functions.hpp"

namespace caffe {

namespace {

// Gives a variable another value while it lives.
template <typename Value>
class Replaced {
 public:
  Replaced(Value* variable, Value value) : variable_(variable), kept_(value) {
    std::swap(*variable_, kept_);
  }
  ~Replaced() { std::swap(*variable_, kept_); }
  Replaced(const Replaced&) = delete;

 private:
  Value* variable_;
  Value kept_;
};

template <typename Dtype>
void SetZero(Blob<Dtype>* blob) {
  RETURN_IF_GPU(
      caffe_gpu_set(blob->count(), Dtype(0), blob->mutable_gpu_data()));
  caffe_set(blob->count(), Dtype(0), blob->mutable_cpu_data());
}

// What a blob's numbers take if others that are aligned follow.
template <typename Dtype>
size_t AlignedBytes(const Blob<Dtype>& blob) {
  const size_t kAlignment = 64;
  return (blob.count() * sizeof(Dtype) + kAlignment - 1) / kAlignment *
         kAlignment;
}

// Without a number in the middle, the median is the mean of the two next to it.
template <typename Dtype>
bayes::TauSummary Summary(vector<Dtype> taus) {
  for (Dtype tau : taus) {
    if (std::isnan(tau)) return {tau, tau, tau};
  }
  const auto middle = taus.begin() + taus.size() / 2;
  std::nth_element(taus.begin(), middle, taus.end());
  double median = *middle;
  if (taus.size() % 2 == 0) {
    median = (median + *std::max_element(taus.begin(), middle)) / 2;
  }
  const auto ends = std::minmax_element(taus.begin(), taus.end());
  return {median, *ends.first, *ends.second};
}

}  // namespace

// The blobs stay where they are and get other memory, so that a layer within
// the stock layer (the bias of Scale) sees the weights too.
template <template <typename> class Base, typename Dtype>
class BayesLayer<Base, Dtype>::DrawnWeights {
 public:
  DrawnWeights(BayesLayer* layer, const Draw& draw) : layer_(layer) {
    for (int i = 0; i < layer->num_stock_blobs_; ++i) {
      Share(*layer->blobs_[i], layer->means_[i].get());
      Share(*draw.weights[i], layer->blobs_[i].get());
    }
  }
  ~DrawnWeights() {
    for (int i = 0; i < layer_->num_stock_blobs_; ++i) {
      Share(*layer_->means_[i], layer_->blobs_[i].get());
    }
  }
  DrawnWeights(const DrawnWeights&) = delete;

 private:
  static void Share(const Blob<Dtype>& from, Blob<Dtype>* to) {
    to->ShareData(from);
    to->ShareDiff(from);
  }
  BayesLayer* layer_;
};

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::LayerSetUp(const vector<Blob<Dtype>*>& bottom,
                                         const vector<Blob<Dtype>*>& top) {
  const LayerParameter& param = this->layer_param_;
  bayes::CheckBayesParam(param, *bayes::FindTrait(this->type()),
                         bottom[0]->num_axes());
  CHECK(bottom.size() == 1 || Base<Dtype>::EqualNumBottomTopBlobs())
      << "layer '" << param.name() << "' has " << bottom.size()
      << " bottoms; a layer of type " << this->type()
      << " takes one, as its weights are parameters of its own";
  CHECK(top.size() == bottom.size() || top.size() == bottom.size() + 1)
      << "layer '" << param.name() << "' has " << bottom.size()
      << " bottoms and " << top.size()
      << " tops; it takes one top for each bottom, and optionally one for KL";
  if (top.size() > bottom.size()) kl_top_ = bottom.size();
  if (kl_top_ >= 0 && param.loss_weight_size() == top.size()) {
    const float weight = param.loss_weight(kl_top_);
    CHECK(weight == 0 || weight == 1)
        << "layer '" << param.name() << "': the loss_weight of its KL top is "
        << weight << ", but must be 0 or 1; bayes_param.kl_weight scales KL";
  }
  SetUpStockLayer(bottom, StockTops(top));
  SetUpDraws();
  MakeBlobs();
  MakePosteriors();
  ProtectParams();
}

// The stock layer sets up its own blobs, and would refuse others beside them. A
// net that was saved with its weights brings all of them. The loss weights are
// for one top more than the stock layer has.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::SetUpStockLayer(const Blobs& bottom,
                                              const Blobs& top) {
  const vector<shared_ptr<Blob<Dtype> > > given = this->blobs_;
  if (num_given_blobs_ % bayes::kBlobsPerParameter == 0) {
    this->blobs_.resize(num_given_blobs_ / bayes::kBlobsPerParameter);
  }
  {
    const Replaced<google::protobuf::RepeatedField<float> > no_loss_weights(
        this->layer_param_.mutable_loss_weight(), {});
    Base<Dtype>::LayerSetUp(bottom, top);
  }
  num_stock_blobs_ = this->blobs_.size();
  CHECK_LE(num_stock_blobs_, bayes::kMostParameters) << this->type();
  for (int i = num_stock_blobs_; i < given.size(); ++i) {
    this->blobs_.push_back(given[i]);
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::SetUpDraws() {
  const BayesParameter& param = this->layer_param_.bayes_param();
  const bool trains = this->phase_ == TRAIN;
  samples_ = param.sample() == BayesParameter_Sample_ALWAYS ||
             (param.sample() == BayesParameter_Sample_TRAIN_ONLY && trains);
  local_ = samples_ && trains && param.local_reparametrization();
  draws_.assign(samples_ && trains ? param.draws_per_batch() : 1, Draw());
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::MakeBlobs() {
  const BayesParameter& param = this->layer_param_.bayes_param();
  const int n = num_stock_blobs_;
  this->param_propagate_down_.resize(bayes::kBlobsPerParameter * n, true);
  const int given = this->blobs_.size();
  this->blobs_.resize(bayes::kBlobsPerParameter * n);
  for (int i = given; i < 2 * n; ++i) {
    const Dtype tau = i == n ? param.tau_init() : param.bias_tau_init();
    this->blobs_[i].reset(new Blob<Dtype>(DeltaShape(i - n)));
    caffe_set(this->blobs_[i]->count(), bayes::SoftplusInverse(tau),
              this->blobs_[i]->mutable_cpu_data());
  }
  for (int i = n; i < std::min(given, 2 * n); ++i) {
    shared_ptr<Blob<Dtype> > delta(new Blob<Dtype>(DeltaShape(i - n)));
    bayes::CopyDelta(*this->blobs_[i], this->layer_param_, delta.get());
    this->blobs_[i] = delta;
  }
  for (int i = std::max(given, 2 * n); i < this->blobs_.size(); ++i) {
    this->blobs_[i].reset(new Blob<Dtype>(this->blobs_[i - 2 * n]->shape()));
    // Local reparametrisation never writes it, but it can be saved.
    this->blobs_[i]->mutable_cpu_data();
  }
}

// The shape of the means, with 1 for each axis along which weights have one
// tau. In NumPy the two broadcast.
template <template <typename> class Base, typename Dtype>
vector<int> BayesLayer<Base, Dtype>::DeltaShape(int param_id) const {
  const LayerParameter& param = this->layer_param_;
  const vector<int>& shape = this->blobs_[param_id]->shape();
  const int axis = bayes::FindTrait(this->type())->output_axis(param);
  switch (param.bayes_param().posterior()) {
    case BayesParameter_Posterior_SHARED:
      return {1};
    case BayesParameter_Posterior_PER_OUTPUT:
      // Each bias is an output's only one.
      if (param_id == 0 && axis != bayes::kEachWeight) {
        vector<int> ones(shape.size(), 1);
        ones[axis] = shape[axis];
        return ones;
      }
      return shape;
    default:
      return shape;
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::MakePosteriors() {
  const BayesParameter& param = this->layer_param_.bayes_param();
  const int n = num_stock_blobs_;
  vector<bayes::OwnPriors<Dtype> > priors;
  if (param.has_prior_from()) {
    vector<vector<int> > shapes;
    for (int i = 0; i < n; ++i) shapes.push_back(this->blobs_[i]->shape());
    priors = bayes::ReadPriors<Dtype>(this->layer_param_, shapes);
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
      if (param.has_prior_from()) {
        draw.posteriors[i].SetPrior(priors[i].means, priors[i].stds);
      } else {
        draw.posteriors[i].SetPrior(
            i == 0 ? param.prior_mean() : param.bias_prior_mean(),
            i == 0 ? param.prior_std() : param.bias_prior_std());
      }
      draw.weights.push_back(shared_ptr<Blob<Dtype> >(new Blob<Dtype>(shape)));
    }
    draw.keys.resize(n);
  }
  for (int i = 0; i < n; ++i) NameNoise(i, this->layer_param_.name(), i);
  means_.clear();
  for (int i = 0; i < n; ++i) {
    means_.emplace_back(new Blob<Dtype>(this->blobs_[i]->shape()));
  }
  owns_.assign(n, true);
  if (param.kl_weight() > 0) {
    kl_scale_ = Dtype(param.kl_weight()) / param.dataset_size();
  }
  // A net does it again, for all of its layers.
  OnNetSetUp(num_weights());
}

// The blob of weights is number 0, that of biases 1; for the batch's second
// part they are 2 and 3, and so on. The parts of all ranks are numbered
// together.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::NameNoise(int param_id, const std::string& owner,
                                        int owner_param_id) {
  const int first = ranks::FirstOfPart(this->phase_, draws_.size());
  for (int d = 0; d < draws_.size(); ++d) {
    draws_[d].keys[param_id] =
        Key(owner, bayes::kMostParameters * (first + d) + owner_param_id);
  }
}

// The net takes learning rates and decay from here, after the prototxt's.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::ProtectParams() {
  LayerParameter& param = this->layer_param_;
  const int blobs = this->blobs_.size();
  while (param.param_size() < blobs) param.add_param();
  for (int i = num_stock_blobs_; i < blobs; ++i) {
    param.mutable_param(i)->set_decay_mult(0);
    if (i >= blobs - num_noise_blobs()) param.mutable_param(i)->set_lr_mult(0);
  }
}

// A draw has a name, so its noise need not be saved: its blobs then have shapes
// and no numbers.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::ToProto(LayerParameter* param, bool write_diff) {
  vector<shared_ptr<Blob<Dtype> > > saved = this->blobs_;
  saved.resize(bayes::NumSavedBlobs(this));
  {
    const Replaced<vector<shared_ptr<Blob<Dtype> > > > only(&this->blobs_,
                                                            saved);
    Base<Dtype>::ToProto(param, write_diff);
  }
  for (int i = saved.size(); i < this->blobs_.size(); ++i) {
    BlobShape* shape = param->add_blobs()->mutable_shape();
    for (int length : this->blobs_[i]->shape()) shape->add_dim(length);
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::OnParamShared(int param_id,
                                            const std::string& owner,
                                            int owner_param_id) {
  if (param_id >= num_stock_blobs_) return;
  owns_[param_id] = false;
  NameNoise(param_id, owner, owner_param_id);
}

template <template <typename> class Base, typename Dtype>
int64_t BayesLayer<Base, Dtype>::num_weights() const {
  int64_t weights = 0;
  for (int i = 0; i < num_stock_blobs_; ++i) {
    if (owns_[i]) weights += this->blobs_[i]->count();
  }
  return weights;
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::OnNetSetUp(int64_t weights) {
  const BayesParameter& param = this->layer_param_.bayes_param();
  if (param.has_kl_weight()) return;
  kl_scale_ = bayes::DefaultKLScale(weights, param.dataset_size());
}

// Without a draw for each part of a batch, as in training.
template <template <typename> class Base, typename Dtype>
size_t BayesLayer<Base, Dtype>::draw_bytes() const {
  if (!samples_ || local_ || draws_.size() > 1) return 0;
  size_t bytes = 0;
  for (const auto& weights : draws_[0].weights) {
    bytes += AlignedBytes(*weights);
  }
  return bytes;
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::PlaceDraw(void* place, bool is_drawn) {
  char* at = static_cast<char*>(place);
  for (const auto& weights : draws_[0].weights) {
    weights->set_cpu_data(reinterpret_cast<Dtype*>(at));
    at += AlignedBytes(*weights);
  }
  is_drawn_ = is_drawn;
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::DrawLike(const bayes::Stochastic& original) {
  bayes::Stochastic::DrawLike(original);
  const BayesLayer& layer = dynamic_cast<const BayesLayer&>(original);
  for (int d = 0; d < draws_.size(); ++d) {
    draws_[d].keys = layer.draws_[d].keys;
  }
  owns_ = layer.owns_;
  // Copies may share delta, and must not raise it to its floor all at once.
  for (Draw& draw : draws_) {
    for (auto& posterior : draw.posteriors) posterior.FixTaus();
  }
}

template <template <typename> class Base, typename Dtype>
bayes::Uncertainty BayesLayer<Base, Dtype>::GetUncertainty() {
  bayes::Uncertainty uncertainty;
  uncertainty.kl_scale = kl_scale_;
  uncertainty.kl_share = KLShare();
  for (int i = 0; i < num_stock_blobs_; ++i) {
    uncertainty.taus.push_back(Summary(draws_[0].posteriors[i].Taus()));
    if (owns_[i]) uncertainty.kl += draws_[0].posteriors[i].KL();
  }
  CHECK(!std::isinf(uncertainty.kl))
      << "layer '" << this->layer_param_.name() << "': its KL overflows with "
      << "tau = " << bayes::TauText(uncertainty.taus[0])
      << "; did the training diverge?";
  return uncertainty;
}

template <template <typename> class Base, typename Dtype>
std::vector<double> BayesLayer<Base, Dtype>::GetTaus(int param_id) {
  const vector<Dtype> taus = draws_[0].posteriors.at(param_id).Taus();
  return std::vector<double>(taus.begin(), taus.end());
}

template <template <typename> class Base, typename Dtype>
vector<Blob<Dtype>*> BayesLayer<Base, Dtype>::StockTops(
    const vector<Blob<Dtype>*>& top) const {
  return vector<Blob<Dtype>*>(top.begin(), top.end() - (kl_top_ >= 0));
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::Reshape(const vector<Blob<Dtype>*>& bottom,
                                      const vector<Blob<Dtype>*>& top) {
  Base<Dtype>::Reshape(bottom, StockTops(top));
  if (kl_top_ >= 0) top[kl_top_]->Reshape(vector<int>());
}

template <template <typename> class Base, typename Dtype>
template <typename Function>
void BayesLayer<Base, Dtype>::ForEachPart(const Blobs& bottom, const Blobs& top,
                                          Function function) {
  if (draws_.size() == 1) return function(&draws_[0], bottom, top);
  bayes::ForEachPart(
      draws_.size(), bottom, top,
      [&](int part, const Blobs& bottom_part, const Blobs& top_part) {
        Base<Dtype>::Reshape(bottom_part, top_part);
        function(&draws_[part], bottom_part, top_part);
      });
  Base<Dtype>::Reshape(bottom, top);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::StockForward(const Blobs& bottom,
                                           const Blobs& top) {
  RETURN_IF_GPU(Base<Dtype>::Forward_gpu(bottom, top));
  Base<Dtype>::Forward_cpu(bottom, top);
}

// The stock layer may ask for the last of its flags, and must see no others.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::StockBackward(const Blobs& top,
                                            const vector<bool>& propagate_down,
                                            const Blobs& bottom,
                                            const vector<bool>& learn) {
  const Replaced<vector<bool> > stock_flags(&this->param_propagate_down_,
                                            learn);
  RETURN_IF_GPU(Base<Dtype>::Backward_gpu(top, propagate_down, bottom));
  Base<Dtype>::Backward_cpu(top, propagate_down, bottom);
}

template <template <typename> class Base, typename Dtype>
typename BayesLayer<Base, Dtype>::Learned BayesLayer<Base, Dtype>::Learns()
    const {
  Learned learned;
  const vector<bool>& flags = this->param_propagate_down_;
  for (int i = 0; i < num_stock_blobs_; ++i) {
    learned.m.push_back(flags[i]);
    learned.delta.push_back(flags[num_stock_blobs_ + i]);
    learned.either.push_back(learned.m[i] || learned.delta[i]);
  }
  return learned;
}

// In training the index of a draw counts forward passes, also after a resume.
template <template <typename> class Base, typename Dtype>
Dtype BayesLayer<Base, Dtype>::KLShare() const {
  const uint64_t ramp = this->layer_param_.bayes_param().kl_ramp();
  if (this->phase_ != TRAIN || index_ + 1 >= ramp) return 1;
  return Dtype(index_ + 1) / ramp;
}

template <template <typename> class Base, typename Dtype>
vector<bayes::KLTerm<Dtype> > BayesLayer<Base, Dtype>::KLTerms(
    const Blobs& top) const {
  vector<bayes::KLTerm<Dtype> > terms(num_stock_blobs_);
  if (kl_top_ < 0) return terms;
  SetZero(top[kl_top_]);
  for (int i = 0; i < num_stock_blobs_; ++i) {
    if (KLScale(i) != 0) terms[i] = {KLScale(i), top[kl_top_]};
  }
  return terms;
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::CheckKL(const Blobs& top) const {
  if (kl_top_ < 0) return;
  const Dtype kl = top[kl_top_]->cpu_data()[0];
  CHECK(std::isfinite(kl)) << "layer '" << this->layer_param_.name()
                           << "': its KL is " << kl
                           << ", but must be finite; did the training diverge?";
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
      if (held() || is_drawn_) {
        posterior.AddKL(term);
      } else if (samples_) {
        posterior.Sample(draw->keys[i], index_, weights, term);
      } else {
        posterior.Mean(weights, term);
      }
    }
    const DrawnWeights drawn(this, *draw);
    StockForward(part, part_top);
  };
  if (DividesInPlace(bottom, top)) {
    input_.CopyFrom(*bottom[0], false, true);
    ForEachPart(Blobs(1, &input_), StockTops(top), run);
  } else {
    ForEachPart(bottom, StockTops(top), run);
  }
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
    const DrawnWeights drawn(this, draw);
    StockForward(Blobs(1, &squares_), Blobs(1, &variances_));
  }
  // Layers that share weights have outputs of their own, and so do ranks.
  bayes::SampleOutput(Key(this->layer_param_.name(), 0), index_,
                      ranks::FirstOfPart(this->phase_, noise_.count()),
                      variances_, &noise_, top[0]);
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::BackwardOnDevice(
    const Blobs& top, const vector<bool>& propagate_down, const Blobs& bottom) {
  if (local_) return BackwardLocal(StockTops(top), propagate_down, bottom);
  const Learned learned = Learns();
  const auto run = [&](Draw* draw, const Blobs& part, const Blobs& part_top) {
    const bool strips = learned.either[0] && HasStrips(*draw);
    {
      vector<bool> by_stock = learned.either;
      if (strips) by_stock[0] = false;
      const DrawnWeights drawn(this, *draw);
      StockBackward(part_top, propagate_down, part, by_stock);
    }
    for (int i = 0; i < num_stock_blobs_; ++i) {
      // KL is the batch's, not each part's.
      const Dtype kl_scale = draw == &draws_[0] ? KLScale(i) : Dtype(0);
      if (i == 0 && strips) {
        BackwardInStrips(draw, *part_top[0], *part[0], kl_scale, learned);
        continue;
      }
      draw->posteriors[i].Backward(draw->weights[i].get(), kl_scale,
                                   learned.m[i], learned.delta[i]);
    }
  };
  if (DividesInPlace(bottom, top)) {
    ForEachPart(Blobs(1, &input_), StockTops(top), run);
    if (propagate_down[0]) bottom[0]->CopyFrom(input_, true);
  } else {
    ForEachPart(bottom, StockTops(top), run);
  }
}

template <template <typename> class Base, typename Dtype>
bool BayesLayer<Base, Dtype>::HasStrips(const Draw& draw) const {
  if constexpr (std::is_same<Base<Dtype>, InnerProductLayer<Dtype> >::value) {
    const Blob<Dtype>& weights = *this->blobs_[0];
    return Caffe::mode() == Caffe::CPU && !this->transpose_ &&
           draw.posteriors[0].has_one_tau() &&
           engine::IsLarge(weights.count() * sizeof(Dtype)) &&
           engine::IsChosen(this->layer_param_.inner_product_param().engine());
  }
  return false;
}

// With the gradient by the drawn weights in a blob, a weight takes 32 bytes to
// and from memory in these two steps: the product reads and writes its
// gradient, which then is read, used and cleared, epsilon and m are read, and
// the gradient of m is read and written. Without, it takes 16.
template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::BackwardInStrips(Draw* draw,
                                               const Blob<Dtype>& top,
                                               const Blob<Dtype>& bottom,
                                               Dtype kl_scale,
                                               const Learned& learned) const {
  if constexpr (std::is_same<Base<Dtype>, InnerProductLayer<Dtype> >::value) {
    const int inputs = this->K_, outputs = this->N_, items = this->M_;
    const Dtype* x = bottom.cpu_data();
    const Dtype* dy = top.cpu_diff();
    // Whole rows, as many as stay in a core's cache.
    const int kStripBytes = 1 << 19;
    const int rows =
        std::max<int>(1, kStripBytes / sizeof(Dtype) / std::max(1, inputs));
    const auto gradient = [&](int first, int n, Dtype* w_diff) {
      engine::Multiply<Dtype>(n / inputs, inputs, items,
                              {dy + first / inputs, 1, outputs}, {x, inputs, 1},
                              w_diff, inputs, false, engine::Start<Dtype>());
    };
    draw->posteriors[0].BackwardInStrips(rows * inputs, gradient, kl_scale,
                                         learned.m[0], learned.delta[0]);
  }
}

template <template <typename> class Base, typename Dtype>
void BayesLayer<Base, Dtype>::BackwardLocal(const Blobs& top,
                                            const vector<bool>& propagate_down,
                                            const Blobs& bottom) {
  const Learned learned = Learns();
  // By way of the outputs' means, straight into the gradient of m.
  StockBackward(top, propagate_down, bottom, learned.m);
  // By way of their variances.
  bayes::SampleOutputBackward(*top[0], noise_, &variances_);
  Draw& draw = draws_[0];
  {
    const DrawnWeights drawn(this, draw);
    StockBackward(Blobs(1, &variances_), propagate_down, Blobs(1, &squares_),
                  learned.either);
  }
  if (propagate_down[0]) bayes::SquareBackward(squares_, bottom[0]);
  for (int i = 0; i < num_stock_blobs_; ++i) {
    draw.posteriors[i].BackwardVariance(draw.weights[i].get(), KLScale(i),
                                        learned.m[i], learned.delta[i]);
  }
}

#define MAKE_BAYES_LAYER(name, axis, independent, output_axis) \
  INSTANTIATE_CLASS(Bayes##name##Layer);                       \
  REGISTER_LAYER_CLASS(Bayes##name);
BAYES_LAYERS(MAKE_BAYES_LAYER)
#undef MAKE_BAYES_LAYER

}  // namespace caffe
