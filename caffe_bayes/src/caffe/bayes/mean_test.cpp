#include "caffe/bayes/mean_test.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "caffe/bayes/kept_stream.hpp"
#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/ranks/ranks.hpp"

namespace caffe {
namespace bayes {

namespace {

// What the scores of all draws may take at a time.
const size_t kScoresBytes = 64 << 20;

// Hides what Caffe tells of each net that it makes.
class QuietSetup {
 public:
  QuietSetup() : level_(FLAGS_minloglevel) {
    FLAGS_minloglevel = std::max<int>(level_, google::GLOG_WARNING);
  }
  ~QuietSetup() { FLAGS_minloglevel = level_; }

 private:
  const int level_;
};

// The last layer of a type, null if there is none.
template <typename Dtype>
const LayerParameter* LastLayer(const Net<Dtype>& net, const char* type) {
  const LayerParameter* last = nullptr;
  for (const auto& layer : net.layers()) {
    if (layer->layer_param().type() == type) last = &layer->layer_param();
  }
  return last;
}

// The layer that a blob comes from, behind the splits that a net inserts.
template <typename Dtype>
const LayerParameter* Source(const Net<Dtype>& net, std::string blob) {
  for (int i = net.layers().size() - 1; i >= 0; --i) {
    const LayerParameter& param = net.layers()[i]->layer_param();
    if (!std::count(param.top().begin(), param.top().end(), blob)) continue;
    if (param.type() != "Split") return &param;
    blob = param.bottom(0);
  }
  return nullptr;
}

void Softmax(std::vector<double>* scores) {
  const double largest = *std::max_element(scores->begin(), scores->end());
  double sum = 0;
  for (double& score : *scores) sum += score = std::exp(score - largest);
  for (double& score : *scores) score /= sum;
}

}  // namespace

template <typename Dtype>
MeanTest<Dtype>::MeanTest(const NetParameter& param, int draws)
    : draws_(draws) {
  {
    const KeptStream stream;
    const QuietSetup quiet;
    net_.reset(new Net<Dtype>(param));
  }
  std::iota(draws_.begin(), draws_.end(), 0);
  FindScores();
}

template <typename Dtype>
void MeanTest<Dtype>::FindScores() {
  const LayerParameter* judge = LastLayer(*net_, "SoftmaxWithLoss");
  int axis;
  if (judge) {
    axis = judge->softmax_param().axis();
    has_ignored_label_ = judge->loss_param().has_ignore_label();
    ignored_label_ = judge->loss_param().ignore_label();
  } else {
    judge = LastLayer(*net_, "Accuracy");
    CHECK(judge) << "test_draws: the test net '" << net_->name()
                 << "' has neither a SoftmaxWithLoss nor an Accuracy layer, "
                    "one of which tells what its predictions and labels are";
    axis = judge->accuracy_param().axis();
    has_ignored_label_ = judge->accuracy_param().has_ignore_label();
    ignored_label_ = judge->accuracy_param().ignore_label();
  }
  scores_ = judge->bottom(0);
  label_ = judge->bottom(1);
  const LayerParameter* source = Source(*net_, scores_);
  are_probabilities_ =
      judge->type() == "Accuracy" && source && source->type() == "Softmax";
  const Blob<Dtype>& scores = *net_->blob_by_name(scores_);
  CHECK(scores.num_axes() > 1 && scores.CanonicalAxisIndex(axis) == 1)
      << "test_draws: layer '" << judge->name() << "' takes classes along axis "
      << axis << " of a blob of shape " << scores.shape_string()
      << ", but they must be along axis 1";
  classes_ = scores.shape(1);
  places_ = scores.count(2);
  const int labels = net_->blob_by_name(label_)->count();
  CHECK_EQ(labels, scores.shape(0) * places_)
      << "test_draws: layer '" << judge->name()
      << "' has not one label for each prediction";
}

template <typename Dtype>
bool MeanTest<Dtype>::Run(const Net<Dtype>* trained, int batches,
                          const std::function<bool()>& go_on) {
  labels_ = wrong_ = loss_ = 0;
  shared_ptr<MonteCarlo<Dtype> > monte_carlo;
  try {
    QuietSetup quiet;
    net_->ShareTrainedLayersWith(trained);
    monte_carlo.reset(new MonteCarlo<Dtype>(net_.get(), scores_));
  } catch (const std::invalid_argument& error) {
    LOG(FATAL) << "test_draws: " << error.what();
  }
  CHECK(monte_carlo->IsFixed(label_))
      << "test_draws: the labels '" << label_ << "' depend on the draw";
  const int batch = net_->blob_by_name(scores_)->shape(0);
  const size_t bytes =
      draws_.size() * batch * classes_ * places_ * sizeof(Dtype);
  const int most = std::max<size_t>(1, kScoresBytes / bytes);
  std::vector<Dtype> scores, labels;
  bool is_whole = true;
  for (int done = 0; done < batches && is_whole; done += most) {
    const int images = std::min(most, batches - done) * batch;
    scores.resize(draws_.size() * images * classes_ * places_);
    labels.resize(static_cast<size_t>(images) * places_);
    is_whole = monte_carlo->Run(draws_, images, {}, {{label_, labels.data()}},
                                scores.data(), [&](double) { return go_on(); });
    if (is_whole) Count(scores, labels, images);
  }
  // Each rank has its share of the batches, and rank 0 says whether to go on.
  if (!ranks::FromFirst(is_whole)) return false;
  for (double* sum : {&labels_, &wrong_, &loss_}) ranks::Sum(sum, 1);
  return true;
}

template <typename Dtype>
void MeanTest<Dtype>::Count(const std::vector<Dtype>& scores,
                            const std::vector<Dtype>& labels, int images) {
  const size_t size = static_cast<size_t>(classes_) * places_;
  std::vector<double> mean(classes_), one(classes_);
  for (int i = 0; i < images; ++i) {
    for (int place = 0; place < places_; ++place) {
      const int label = labels[static_cast<size_t>(i) * places_ + place];
      if (has_ignored_label_ && label == ignored_label_) continue;
      CHECK(label >= 0 && label < classes_)
          << "test_draws: a label is " << label << ", but the net has "
          << classes_ << " classes";
      std::fill(mean.begin(), mean.end(), 0);
      for (int d = 0; d < draws_.size(); ++d) {
        const Dtype* score = &scores[(d * size_t(images) + i) * size + place];
        for (int c = 0; c < classes_; ++c) one[c] = score[c * places_];
        if (!are_probabilities_) Softmax(&one);
        for (int c = 0; c < classes_; ++c) mean[c] += one[c] / draws_.size();
      }
      const int best =
          std::max_element(mean.begin(), mean.end()) - mean.begin();
      ++labels_;
      wrong_ += best != label;
      loss_ -= std::log(std::max<double>(mean[label], FLT_MIN));
    }
  }
}

INSTANTIATE_CLASS(MeanTest);

}  // namespace bayes
}  // namespace caffe
