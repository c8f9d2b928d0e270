#ifndef TESTS_CPP_ENGINE_TRIAL_HPP_
#define TESTS_CPP_ENGINE_TRIAL_HPP_

// Running one layer with random numbers, by the engine or by Caffe's own code,
// and comparing what it computes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layer_factory.hpp"
#include "engine_cases.hpp"

namespace caffe {

/// The largest error that is allowed, as a share of a blob's largest number:
/// 1e-5 in single precision, as many units of the last place in double.
template <typename Dtype>
Dtype EngineTolerance() {
  return 84 * std::numeric_limits<Dtype>::epsilon();
}

template <typename Dtype>
using Numbers = vector<Dtype>;

// Numbers that a layer has computed, and what their errors are compared with
// at least, where they may all be small by chance.
template <typename Dtype>
struct Result {
  string name;
  Numbers<Dtype> numbers;
  Dtype scale;
};

template <typename Dtype>
using Results = vector<Result<Dtype> >;

template <typename Dtype>
void FillNormal(unsigned seed, int count, Dtype* to) {
  std::mt19937 random(seed);
  std::normal_distribution<Dtype> normal;
  for (int i = 0; i < count; ++i) to[i] = normal(random);
}

// Item `first` of one blob is item 0 of the other, so that an image can be
// taken out of its batch.
template <typename Dtype>
void FillItems(unsigned seed, int first, const vector<int>& shape, Dtype* to) {
  int size = 1;
  for (int axis = 1; axis < shape.size(); ++axis) size *= shape[axis];
  const int items = shape.empty() ? 1 : shape[0];
  for (int i = 0; i < items; ++i) {
    FillNormal(seed + 7919 * (first + i), size, to + i * size);
  }
}

// Sets what DEFAULT engine means while it lives.
class WithDefault {
 public:
  explicit WithDefault(bool is_engine) : before_(engine::IsChosen(0)) {
    engine::SetDefault(is_engine);
  }
  ~WithDefault() { engine::SetDefault(before_); }

 private:
  bool before_;
};

// One layer, set up with random parameters, and its blobs.
template <typename Dtype>
class Trial {
 public:
  typedef shared_ptr<Blob<Dtype> > BlobPtr;

  // With Caffe's own code, or with the engine as far as it is chosen.
  explicit Trial(const Case& c, bool upstream = false, int first_item = 0)
      : case_(c), by_default_(engine::IsChosen(0)) {
    LayerParameter param = Param(c);
    if (upstream) ChooseUpstream(&param);
    // Layers without an engine field have nothing else to tell them.
    if (upstream && !HasEngineField(param.type())) by_default_ = false;
    Caffe::set_random_seed(1701);
    layer_ = LayerRegistry<Dtype>::CreateLayer(param);
    for (int i = 0; i < c.bottoms.size(); ++i) {
      Add(new Blob<Dtype>(c.bottoms[i]), &bottom_);
      FillItems(100 + i, first_item, c.bottoms[i],
                bottom_[i]->mutable_cpu_data());
    }
    for (int i = 0; i < c.tops; ++i) Add(new Blob<Dtype>, &top_);
    if (c.tops == 0) top_.push_back(bottom_[0]);
    layer_->SetUp(bottom_, top_);
    const int stock = param.type().compare(0, 5, "Bayes")
                          ? layer_->blobs().size()
                          : layer_->blobs().size() / 3;
    for (int i = 0; i < stock; ++i) {
      Blob<Dtype>* blob = layer_->blobs()[i].get();
      FillNormal(200 + i, blob->count(), blob->mutable_cpu_data());
    }
    if (param.type() == "BatchNorm") MakeVariances();
    propagate_down_.assign(bottom_.size(), true);
    // What is to be added to, and what is to be written over.
    int seed = 300;
    for (const auto& blob : layer_->blobs()) {
      FillNormal(seed++, blob->count(), blob->mutable_cpu_diff());
    }
    for (Blob<Dtype>* blob : bottom_) {
      FillNormal(seed++, blob->count(), blob->mutable_cpu_diff());
    }
  }

  Layer<Dtype>* layer() { return layer_.get(); }
  Blob<Dtype>* bottom(int i) { return bottom_[i]; }
  Blob<Dtype>* top(int i) { return top_[i]; }
  vector<bool>& propagate_down() { return propagate_down_; }

  Results<Dtype> Forward() {
    const WithDefault with_default(by_default_);
    layer_->Forward(bottom_, top_);
    Results<Dtype> results;
    for (int i = 0; i < top_.size(); ++i) {
      results.push_back({"top " + std::to_string(i), Data(*top_[i]), 0});
    }
    return results;
  }

  Results<Dtype> ForwardBackward() {
    Results<Dtype> results = Forward();
    for (int i = 0; i < top_.size(); ++i) {
      FillNormal(400 + i, top_[i]->count(), top_[i]->mutable_cpu_diff());
    }
    Backward();
    for (int i = 0; i < layer_->blobs().size(); ++i) {
      const Blob<Dtype>& blob = *layer_->blobs()[i];
      results.push_back({"parameter " + std::to_string(i), Data(blob), 0});
      // Added to numbers of this size.
      results.push_back(
          {"gradient of parameter " + std::to_string(i), Diff(blob), 1});
    }
    for (int i = 0; i < bottom_.size(); ++i) {
      results.push_back(
          {"gradient of bottom " + std::to_string(i), Diff(*bottom_[i]), 0});
    }
    return results;
  }

  void Backward() {
    const WithDefault with_default(by_default_);
    layer_->Backward(top_, propagate_down_, bottom_);
  }

  static Numbers<Dtype> Data(const Blob<Dtype>& blob) {
    return Numbers<Dtype>(blob.cpu_data(), blob.cpu_data() + blob.count());
  }
  static Numbers<Dtype> Diff(const Blob<Dtype>& blob) {
    return Numbers<Dtype>(blob.cpu_diff(), blob.cpu_diff() + blob.count());
  }

 private:
  void Add(Blob<Dtype>* blob, vector<Blob<Dtype>*>* to) {
    owned_.push_back(BlobPtr(blob));
    to->push_back(blob);
  }

  static void ChooseUpstream(LayerParameter* param) {
    param->mutable_convolution_param()->set_engine(
        ConvolutionParameter_Engine_CAFFE);
    param->mutable_inner_product_param()->set_engine(
        InnerProductParameter_Engine_CAFFE);
    param->mutable_pooling_param()->set_engine(PoolingParameter_Engine_CAFFE);
    param->mutable_relu_param()->set_engine(ReLUParameter_Engine_CAFFE);
    param->mutable_softmax_param()->set_engine(SoftmaxParameter_Engine_CAFFE);
    param->mutable_lrn_param()->set_engine(LRNParameter_Engine_CAFFE);
    param->mutable_sigmoid_param()->set_engine(SigmoidParameter_Engine_CAFFE);
    param->mutable_tanh_param()->set_engine(TanHParameter_Engine_CAFFE);
  }

  static bool HasEngineField(const string& type) {
    for (const char* other : {"BatchNorm", "Bias", "Concat", "ELU", "Eltwise",
                              "PReLU", "Scale", "Split", "Swish"}) {
      if (type == other) return false;
    }
    return true;
  }

  // The sums of variances, and how many there are.
  void MakeVariances() {
    for (int i : {1, 2}) {
      Blob<Dtype>* blob = layer_->blobs()[i].get();
      for (int j = 0; j < blob->count(); ++j) {
        blob->mutable_cpu_data()[j] = 1 + std::fabs(blob->cpu_data()[j]);
      }
    }
  }

  Case case_;
  bool by_default_;
  vector<BlobPtr> owned_;
  vector<Blob<Dtype>*> bottom_, top_;
  vector<bool> propagate_down_;
  shared_ptr<Layer<Dtype> > layer_;
};

// The largest difference, as a multiple of the largest number; what is not
// finite must be the same.
template <typename Dtype>
void ExpectClose(const Results<Dtype>& expected, const Results<Dtype>& found,
                 Dtype tolerance) {
  ASSERT_EQ(expected.size(), found.size());
  for (int i = 0; i < expected.size(); ++i) {
    const Numbers<Dtype>&a = expected[i].numbers, &b = found[i].numbers;
    ASSERT_EQ(a.size(), b.size());
    Dtype largest = expected[i].scale, error = 0;
    int where = 0;
    for (int j = 0; j < a.size(); ++j) {
      if (!std::isfinite(a[j]) || !std::isfinite(b[j])) {
        EXPECT_TRUE(a[j] == b[j] || (std::isnan(a[j]) && std::isnan(b[j])))
            << expected[i].name << " number " << j << " is " << b[j]
            << " and not " << a[j];
        continue;
      }
      largest = std::max(largest, std::fabs(a[j]));
      if (std::fabs(a[j] - b[j]) > error) {
        error = std::fabs(a[j] - b[j]);
        where = j;
      }
    }
    EXPECT_LE(error, tolerance * largest)
        << expected[i].name << " number " << where << " is " << b[where]
        << " and not " << a[where];
  }
}

template <typename Dtype>
void ExpectSameBits(const Results<Dtype>& expected,
                    const Results<Dtype>& found) {
  ExpectClose<Dtype>(expected, found, 0);
}

// Sets the number of threads while it lives.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(engine::TeamSize()) {
    engine::SetTeamSize(threads);
  }
  ~WithThreads() { engine::SetTeamSize(before_); }

 private:
  int before_;
};

}  // namespace caffe

#endif  // TESTS_CPP_ENGINE_TRIAL_HPP_
