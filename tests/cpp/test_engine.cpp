// The CPU engine against Caffe's own code, over lists of shapes: outputs and
// gradients, the same bits for any number of threads and any batch, no access
// beyond the arrays, and the solver's update in one pass.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/engine.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/test/test_caffe_main.hpp"

namespace caffe {

namespace {

// A layer and what it is fed with.
struct Case {
  string layer;
  vector<vector<int> > bottoms;
  int tops;  // 0: one, in place of the bottom
};

string Describe(const Case& c) {
  string text = c.layer;
  for (const auto& shape : c.bottoms) {
    text += " [";
    for (int dim : shape) text += " " + std::to_string(dim);
    text += " ]";
  }
  return text;
}

LayerParameter Param(const Case& c) {
  LayerParameter param;
  CHECK(google::protobuf::TextFormat::ParseFromString(
      "name: 'layer' " + c.layer, &param))
      << c.layer;
  return param;
}

Case Convolution(const string& options, const vector<int>& bottom) {
  return {
      "type: 'Convolution' convolution_param { " + options + " }", {bottom}, 1};
}

vector<Case> Convolutions() {
  vector<Case> cases = {
      Convolution("num_output: 1 kernel_size: 1", {1, 1, 1, 1}),
      Convolution("num_output: 20 kernel_size: 5", {3, 1, 28, 28}),
      Convolution("num_output: 50 kernel_size: 5", {2, 20, 12, 12}),
      // Kernels that are no squares, or as large as the image.
      Convolution("num_output: 5 kernel_h: 1 kernel_w: 7", {2, 3, 6, 40}),
      Convolution("num_output: 5 kernel_h: 7 kernel_w: 1", {2, 3, 9, 5}),
      Convolution("num_output: 5 kernel_h: 2 kernel_w: 3", {2, 3, 9, 11}),
      Convolution("num_output: 17 kernel_size: 5", {3, 20, 5, 5}),
      Convolution("num_output: 3 kernel_size: 1", {2, 20, 7, 7}),
      Convolution("num_output: 3 kernel_size: 5 bias_term: false",
                  {2, 3, 9, 9}),
      // Pads up to more than the kernel covers.
      Convolution("num_output: 7 kernel_size: 3 pad: 1", {2, 3, 9, 10}),
      Convolution("num_output: 7 kernel_size: 3 pad: 2", {2, 3, 9, 10}),
      Convolution("num_output: 7 kernel_size: 3 pad: 3", {2, 3, 9, 10}),
      Convolution("num_output: 4 kernel_size: 1 pad: 2", {1, 3, 3, 4}),
      Convolution("num_output: 6 kernel_size: 5 pad: 2", {2, 20, 8, 8}),
      Convolution("num_output: 5 kernel_size: 3 pad_h: 0 pad_w: 2",
                  {2, 3, 8, 9}),
      Convolution("num_output: 5 kernel_size: 3 pad_h: 3 pad_w: 1",
                  {2, 3, 8, 9}),
      Convolution("num_output: 5 kernel_size: 3 pad: 1", {2, 3, 1, 1}),
      // Strides, of which some leave a part of the image unused.
      Convolution("num_output: 5 kernel_size: 3 stride: 2", {2, 3, 9, 12}),
      Convolution("num_output: 5 kernel_size: 3 stride: 3", {2, 3, 11, 13}),
      Convolution("num_output: 5 kernel_size: 2 stride: 3", {2, 3, 9, 10}),
      Convolution("num_output: 5 kernel_size: 1 stride: 2", {2, 3, 8, 8}),
      Convolution("num_output: 5 kernel_size: 3 stride: 2 pad: 1",
                  {2, 3, 10, 9}),
      Convolution("num_output: 5 kernel_size: 5 stride: 3 pad: 3",
                  {2, 3, 10, 9}),
      Convolution("num_output: 5 kernel_size: 3 stride_h: 1 stride_w: 2",
                  {2, 3, 10, 40}),
      Convolution("num_output: 5 kernel_size: 3 stride_h: 3 stride_w: 1",
                  {2, 3, 10, 40}),
      // Dilation.
      Convolution("num_output: 5 kernel_size: 3 dilation: 2", {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 2 pad: 2",
                  {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 2 dilation: 2 pad: 3 stride: 2",
                  {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 1 dilation: 2",
                  {2, 3, 11, 19}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 2 dilation: 1 pad: 1",
                  {2, 3, 11, 19}),
      // Groups.
      Convolution("num_output: 6 kernel_size: 3 group: 2", {2, 4, 9, 9}),
      Convolution("num_output: 34 kernel_size: 3 group: 2 pad: 1 stride: 2",
                  {3, 20, 9, 9}),
      Convolution("num_output: 20 kernel_size: 3 group: 20 pad: 1",
                  {2, 20, 9, 9}),
      Convolution("num_output: 9 kernel_size: 3 group: 3 bias_term: false",
                  {2, 3, 9, 9}),
      // Many images; weights of which few sums fit into the engine's memory.
      Convolution("num_output: 5 kernel_size: 3 pad: 1", {19, 3, 6, 6}),
      Convolution("num_output: 64 kernel_size: 3", {17, 128, 4, 3}),
      // Kernels of the size that most nets have, with many channels.
      Convolution("num_output: 33 kernel_size: 3 pad: 1", {3, 32, 14, 15}),
      Convolution("num_output: 64 kernel_size: 3 pad: 1", {2, 64, 8, 8}),
      Convolution("num_output: 17 kernel_size: 3", {1, 48, 21, 9}),
      Convolution("num_output: 40 kernel_size: 3 pad: 2 group: 2",
                  {5, 32, 8, 7}),
      Convolution("num_output: 16 kernel_size: 3 pad_h: 0 pad_w: 3",
                  {3, 16, 7, 6}),
      Convolution("num_output: 16 kernel_size: 3 pad: 1", {11, 16, 4, 4}),
      Convolution("num_output: 18 kernel_size: 3 pad: 1 bias_term: false",
                  {1, 16, 5, 75}),
      // Rows much wider than a vector.
      Convolution("num_output: 3 kernel_size: 3 pad: 1", {1, 2, 3, 301}),
      Convolution("num_output: 2 kernel_h: 1 kernel_w: 3 stride_h: 1"
                  " stride_w: 2",
                  {1, 1, 1, 260}),
      // What the engine leaves to upstream.
      Convolution("num_output: 3 kernel_size: 2 pad: 1", {2, 2, 3, 4, 5}),
      Convolution("num_output: 3 kernel_size: 3", {2, 2, 9}),
  };
  Case several =
      Convolution("num_output: 7 kernel_size: 3 pad: 1", {2, 3, 5, 6});
  several.bottoms.assign(3, several.bottoms[0]);
  several.tops = 3;
  cases.push_back(several);
  // Everything that vectors and blocks of rows divide with a remainder.
  for (int width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65}) {
    for (int outputs : {1, 5, 6, 7, 13, 14, 15, 29}) {
      cases.push_back(Convolution("num_output: " + std::to_string(outputs) +
                                      " kernel_h: 2 kernel_w: 3 pad_h: 0"
                                      " pad_w: 1",
                                  {2, 2, 3, width}));
    }
  }
  return cases;
}

vector<Case> InnerProducts() {
  vector<Case> cases;
  const auto add = [&](const string& options, const vector<int>& bottom) {
    cases.push_back(
        {"type: 'InnerProduct' inner_product_param { " + options + " }",
         {bottom},
         1});
  };
  for (int inputs : {1, 3, 17, 100}) {
    for (int outputs : {1, 6, 10, 15, 50}) {
      for (int images : {1, 2, 5, 16, 33}) {
        for (const char* more : {"", " transpose: true"}) {
          add("num_output: " + std::to_string(outputs) + more,
              {images, inputs});
        }
      }
    }
  }
  add("num_output: 500", {64, 800});
  add("num_output: 10", {3, 50, 4, 4});
  add("num_output: 7 bias_term: false", {5, 33});
  add("num_output: 7 bias_term: false transpose: true", {5, 33});
  add("num_output: 7 axis: 2", {3, 5, 9});
  add("num_output: 7 axis: 2 transpose: true", {3, 5, 3, 3});
  add("num_output: 7 axis: 2 bias_term: false", {3, 5, 3, 3});
  add("num_output: 5 axis: 0", {4, 9});
  return cases;
}

vector<Case> Poolings() {
  vector<Case> cases;
  const vector<vector<int> > images = {{1, 1, 3, 3},  {2, 3, 4, 4},
                                       {2, 3, 5, 7},  {3, 20, 8, 8},
                                       {1, 2, 6, 33}, {1, 2, 9, 70}};
  for (const auto& image : images) {
    for (const char* method : {"MAX", "AVE"}) {
      const auto add = [&](const string& options, int tops = 1) {
        cases.push_back({string("type: 'Pooling' pooling_param { pool: ") +
                             method + " " + options + " }",
                         {image},
                         tops});
      };
      for (const char* options :
           {"kernel_size: 2 stride: 1", "kernel_size: 2 stride: 2",
            "kernel_size: 2 stride: 2 pad: 1", "kernel_size: 3 stride: 1",
            "kernel_size: 3 stride: 2", "kernel_size: 3 stride: 3",
            "kernel_size: 3 stride: 2 pad: 1",
            "kernel_size: 3 stride: 2 pad: 2",
            "kernel_size: 2 stride: 2 round_mode: FLOOR",
            "kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1",
            "kernel_h: 3 kernel_w: 2 stride: 2",
            "kernel_h: 2 kernel_w: 2 stride_h: 1 stride_w: 2",
            "kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 1",
            "global_pooling: true"}) {
        add(options);
      }
      // Once more with the places of the maxima as a top.
      if (string(method) == "MAX") add("kernel_size: 2 stride: 2", 2);
      if (image[2] >= 5) add("kernel_size: 5 stride: 2");
    }
  }
  return cases;
}

vector<Case> Relus() {
  vector<Case> cases;
  for (const char* slope : {"0", "0.1"}) {
    for (int tops : {0, 1}) {
      for (int count : {1, 15, 17, 14000}) {
        cases.push_back({string("type: 'ReLU' relu_param { negative_slope: ") +
                             slope + " }",
                         {{3, count}},
                         tops});
      }
    }
  }
  return cases;
}

vector<Case> Softmaxes() {
  vector<Case> cases;
  const auto add = [&](const string& options, const vector<int>& bottom) {
    cases.push_back(
        {"type: 'Softmax' softmax_param { " + options + " }", {bottom}, 1});
  };
  add("", {1, 1});
  add("", {1, 10});
  add("", {7, 10});
  add("", {300, 100});
  add("", {2, 4, 3, 5});
  add("", {3, 5, 33});
  add("axis: 2", {2, 3, 5, 7});
  add("axis: 0", {5, 3});
  add("axis: -1", {2, 3, 17});
  return cases;
}

// Bayesian layers, some with more weights than one thread takes at a time.
vector<Case> BayesLayers() {
  const string bayes =
      " bayes_param { kl_weight: 2 dataset_size: 100 prior_std: 1 }";
  return {
      {"type: 'BayesConvolution' convolution_param {"
       " num_output: 7 kernel_size: 3 pad: 1 }" +
           bayes,
       {{3, 2, 9, 9}},
       2},
      {"type: 'BayesConvolution' convolution_param {"
       " num_output: 50 kernel_size: 5 }" +
           bayes,
       {{2, 20, 9, 9}},
       1},
      {"type: 'BayesInnerProduct' inner_product_param { num_output: 70 }" +
           bayes,
       {{5, 300}},
       2},
      {"type: 'BayesDeconvolution' convolution_param {"
       " num_output: 3 kernel_size: 2 stride: 2 }" +
           bayes,
       {{2, 2, 4, 5}},
       1},
  };
}

vector<Case> All() {
  vector<Case> all;
  for (const auto& cases :
       {Convolutions(), InnerProducts(), Poolings(), Relus(), Softmaxes()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
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

// One layer, set up with random parameters, and its blobs.
template <typename Dtype>
class Trial {
 public:
  typedef shared_ptr<Blob<Dtype> > BlobPtr;

  // With Caffe's own code, or with the engine as far as it is chosen.
  explicit Trial(const Case& c, bool upstream = false, int first_item = 0)
      : case_(c) {
    LayerParameter param = Param(c);
    if (upstream) ChooseUpstream(&param);
    Caffe::set_random_seed(1701);
    layer_ = LayerRegistry<Dtype>::CreateLayer(param);
    for (int i = 0; i < c.bottoms.size(); ++i) {
      Add(new Blob<Dtype>(c.bottoms[i]), &bottom_);
      FillItems(100 + i, first_item, c.bottoms[i],
                bottom_[i]->mutable_cpu_data());
    }
    for (int i = 0; i < c.tops; ++i) Add(new Blob<Dtype>, &top_);
    if (c.tops == 0) top_ = bottom_;
    layer_->SetUp(bottom_, top_);
    const int stock = param.type().compare(0, 5, "Bayes")
                          ? layer_->blobs().size()
                          : layer_->blobs().size() / 3;
    for (int i = 0; i < stock; ++i) {
      Blob<Dtype>* blob = layer_->blobs()[i].get();
      FillNormal(200 + i, blob->count(), blob->mutable_cpu_data());
    }
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
    layer_->Backward(top_, propagate_down_, bottom_);
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
  }

  Case case_;
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

// An array with a page that cannot be touched right behind its last number, or
// right before its first one.
template <typename T>
class Guarded {
 public:
  Guarded(size_t count, bool guard_behind) {
    const size_t page = sysconf(_SC_PAGESIZE), bytes = count * sizeof(T);
    const size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    start_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(start_ != MAP_FAILED);
    CHECK_EQ(0, mprotect(start_, page, PROT_NONE));
    CHECK_EQ(0, mprotect(start_ + page + inside, page, PROT_NONE));
    data_ = reinterpret_cast<T*>(start_ + page +
                                 (guard_behind ? inside - bytes : 0));
  }
  ~Guarded() { munmap(start_, size_); }
  Guarded(const Guarded&) = delete;
  T* data() const { return data_; }
  void Fill(const Numbers<T>& from) const {
    std::copy(from.begin(), from.end(), data_);
  }

 private:
  size_t size_;
  char* start_;
  T* data_;
};

}  // namespace

template <typename Dtype>
class EngineTest : public CPUDeviceTest<Dtype> {
 protected:
  // 1e-5 in single precision, as many units of the last place in double.
  static Dtype Tolerance() {
    return 84 * std::numeric_limits<Dtype>::epsilon();
  }

  void ExpectLikeUpstream(const vector<Case>& cases, Dtype tolerance) {
    for (const Case& c : cases) {
      SCOPED_TRACE(Describe(c));
      ExpectClose(Trial<Dtype>(c, true).ForwardBackward(),
                  Trial<Dtype>(c).ForwardBackward(), tolerance);
    }
  }

  // The outputs and gradients for bottoms that `change` has worked on.
  void ExpectLikeUpstream(const Case& c, Dtype tolerance, bool backward,
                          const std::function<void(Blob<Dtype>*)>& change) {
    SCOPED_TRACE(Describe(c));
    Results<Dtype> results[2];
    for (bool upstream : {false, true}) {
      Trial<Dtype> trial(c, upstream);
      change(trial.bottom(0));
      results[upstream] = backward ? trial.ForwardBackward() : trial.Forward();
    }
    ExpectClose(results[1], results[0], tolerance);
  }

  // That max pooling hands each gradient to the first of the window's largest
  // numbers, if it has one.
  void ExpectGradientOfMaxima(const Case& c,
                              const std::function<void(Blob<Dtype>*)>& change) {
    SCOPED_TRACE(Describe(c));
    PoolingParameter param = Param(c).pooling_param();
    // Without pads, and with a single top.
    if (param.pool() != PoolingParameter_PoolMethod_MAX || c.tops > 1 ||
        c.layer.find("pad") != string::npos || param.global_pooling()) {
      return;
    }
    Trial<Dtype> trial(c);
    change(trial.bottom(0));
    const Results<Dtype> results = trial.ForwardBackward();
    const Blob<Dtype>&bottom = *trial.bottom(0), &top = *trial.top(0);
    const auto either = [](int own, int both) { return own ? own : both; };
    const int kernel_h = either(param.kernel_h(), param.kernel_size());
    const int kernel_w = either(param.kernel_w(), param.kernel_size());
    const int stride_h = either(param.stride_h(), param.stride());
    const int stride_w = either(param.stride_w(), param.stride());
    Numbers<Dtype> expected(bottom.count());
    for (int i = 0; i < top.count(); ++i) {
      const int plane = i / (top.height() * top.width());
      const int y = i / top.width() % top.height() * stride_h;
      const int x = i % top.width() * stride_w;
      Dtype largest = -std::numeric_limits<float>::max();
      int where = -1;
      for (int h = y; h < std::min(y + kernel_h, bottom.height()); ++h) {
        for (int w = x; w < std::min(x + kernel_w, bottom.width()); ++w) {
          const int at = (plane * bottom.height() + h) * bottom.width() + w;
          if (bottom.cpu_data()[at] > largest) {
            largest = bottom.cpu_data()[at];
            where = at;
          }
        }
      }
      if (where >= 0) expected[where] += top.cpu_diff()[i];
    }
    ExpectSameBits<Dtype>({{"gradient", expected, 0}},
                          {{"gradient", results.back().numbers, 0}});
  }
};
TYPED_TEST_CASE(EngineTest, TestDtypes);

TYPED_TEST(EngineTest, ConvolutionIsUpstreams) {
  this->ExpectLikeUpstream(Convolutions(), this->Tolerance());
}

TYPED_TEST(EngineTest, InnerProductIsUpstreams) {
  this->ExpectLikeUpstream(InnerProducts(), this->Tolerance());
}

TYPED_TEST(EngineTest, SoftmaxIsUpstreams) {
  this->ExpectLikeUpstream(Softmaxes(), this->Tolerance());
}

// These move numbers about, and are the same to the bit.
TYPED_TEST(EngineTest, PoolingIsUpstreams) {
  this->ExpectLikeUpstream(Poolings(), 0);
}

TYPED_TEST(EngineTest, ReluIsUpstreams) {
  this->ExpectLikeUpstream(Relus(), 0);
}

// Of numbers that are the same, the first is the maximum.
TYPED_TEST(EngineTest, PoolingOfTies) {
  for (const Case& c : Poolings()) {
    this->ExpectLikeUpstream(c, 0, true, [](Blob<TypeParam>* bottom) {
      TypeParam* x = bottom->mutable_cpu_data();
      for (int i = 0; i < bottom->count(); ++i) x[i] = std::round(x[i]);
    });
  }
}

// A window without a number above -FLT_MAX has no maximum. Its gradient goes
// nowhere; upstream's is written to where it may not, and no example.
TYPED_TEST(EngineTest, PoolingOfInfinityAndNaN) {
  const TypeParam inf = std::numeric_limits<TypeParam>::infinity();
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (const Case& c : Poolings()) {
    const auto spoil = [=](Blob<TypeParam>* bottom) {
      TypeParam* x = bottom->mutable_cpu_data();
      const int width = bottom->shape(-1);
      for (int i = 0; i < bottom->count(); ++i) {
        if (i / width % 6 < 3 || i % width < width / 2) x[i] = -inf;
        if (i % 11 == 5) x[i] = nan;
        if (i % 13 == 7) x[i] = inf;
      }
    };
    this->ExpectLikeUpstream(c, 0, false, spoil);
    if (engine::IsChosen(0)) this->ExpectGradientOfMaxima(c, spoil);
  }
}

// Where the stride is longer than the window, the last one may lie outside of
// the image.
TYPED_TEST(EngineTest, PoolingOfWindowsOutsideOfTheImage) {
  const auto leave = [](Blob<TypeParam>*) {};
  for (int size : {5, 6, 33}) {
    for (const char* options :
         {"kernel_size: 2 stride: 3", "kernel_size: 1 stride: 3",
          "kernel_size: 1 stride: 2"}) {
      const Case c = {
          string("type: 'Pooling' pooling_param { ") + options + " }",
          {{2, 2, size, size}},
          1};
      this->ExpectLikeUpstream(c, 0, false, leave);
      if (engine::IsChosen(0)) this->ExpectGradientOfMaxima(c, leave);
    }
  }
}

TYPED_TEST(EngineTest, ReluOfZeroAndInfinity) {
  const TypeParam inf = std::numeric_limits<TypeParam>::infinity();
  for (const Case& c : Relus()) {
    this->ExpectLikeUpstream(c, 0, true, [=](Blob<TypeParam>* bottom) {
      const TypeParam special[] = {0, inf, TypeParam(-0.0)};
      TypeParam* x = bottom->mutable_cpu_data();
      for (int i = 0; i < bottom->count(); i += 5) x[i] = special[i / 5 % 3];
    });
  }
}

// A net that has gone wrong must not look right again.
TYPED_TEST(EngineTest, ReluOfNaNIsNaN) {
  for (const Case& c : Relus()) {
    SCOPED_TRACE(Describe(c));
    Trial<TypeParam> trial(c);
    const int count = trial.bottom(0)->count();
    for (int i = 0; i < count; i += 7) {
      trial.bottom(0)->mutable_cpu_data()[i] =
          std::numeric_limits<TypeParam>::quiet_NaN();
    }
    trial.Forward();
    int nans = 0;
    for (TypeParam y : trial.Data(*trial.top(0))) nans += std::isnan(y);
    EXPECT_EQ((count + 6) / 7, nans);
  }
}

TYPED_TEST(EngineTest, SoftmaxOfLargeLogits) {
  for (const Case& c : Softmaxes()) {
    for (double scale : {30.0, 1e3, 1e30}) {
      this->ExpectLikeUpstream(
          c, this->Tolerance(), false,
          [=](Blob<TypeParam>* bottom) { bottom->scale_data(scale); });
    }
    this->ExpectLikeUpstream(c, this->Tolerance(), false,
                             [](Blob<TypeParam>* bottom) {
                               bottom->mutable_cpu_data()[0] =
                                   -std::numeric_limits<TypeParam>::infinity();
                             });
  }
}

// Each place of the first item has its turn, as the first class is not treated
// like the others.
TYPED_TEST(EngineTest, SoftmaxOfNaNIsNaN) {
  for (const Case& c : Softmaxes()) {
    const int count = std::min(12, Blob<TypeParam>(c.bottoms[0]).count());
    for (int i = 0; i < count; ++i) {
      this->ExpectLikeUpstream(
          c, this->Tolerance(), false, [=](Blob<TypeParam>* bottom) {
            bottom->mutable_cpu_data()[i] =
                std::numeric_limits<TypeParam>::quiet_NaN();
          });
    }
  }
}

// What is not to be learned or not asked for stays as it was.
TYPED_TEST(EngineTest, GradientsThatAreNotWantedAreLeftAlone) {
  const vector<Case> cases = {
      Convolution("num_output: 5 kernel_size: 3 pad: 1", {2, 3, 9, 9}),
      Convolution("num_output: 5 kernel_size: 3 stride: 2", {2, 3, 9, 9}),
      InnerProducts()[0], Poolings()[1], Relus()[5]};
  for (const Case& c : cases) {
    const int params = Trial<TypeParam>(c).layer()->blobs().size();
    for (int wanted = 0; wanted < 1 << (params + 1); ++wanted) {
      SCOPED_TRACE(Describe(c) + " wanted " + std::to_string(wanted));
      Results<TypeParam> results[2];
      for (bool upstream : {false, true}) {
        Trial<TypeParam> trial(c, upstream);
        trial.propagate_down()[0] = wanted & 1;
        for (int i = 0; i < params; ++i) {
          trial.layer()->set_param_propagate_down(i, wanted >> (i + 1) & 1);
        }
        const Numbers<TypeParam> before = trial.Diff(*trial.bottom(0));
        results[upstream] = trial.ForwardBackward();
        EXPECT_EQ(!(wanted & 1), before == results[upstream].back().numbers);
      }
      ExpectClose(results[1], results[0], this->Tolerance());
    }
  }
}

TYPED_TEST(EngineTest, SameBitsForAnyNumberOfThreads) {
  vector<Case> cases = BayesLayers();
  for (const Case& c : All()) cases.push_back(c);
  vector<Results<TypeParam> > alone;
  {
    const WithThreads with_threads(1);
    for (const Case& c : cases) {
      alone.push_back(Trial<TypeParam>(c).ForwardBackward());
    }
  }
  for (int threads : {2, 3, 5}) {
    const WithThreads with_threads(threads);
    for (int i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(Describe(cases[i]) + " " + std::to_string(threads));
      ExpectSameBits(alone[i], Trial<TypeParam>(cases[i]).ForwardBackward());
    }
  }
}

// Monte Carlo inference rests on this: it takes images in other portions.
TYPED_TEST(EngineTest, ImagesDoNotDependOnTheirBatch) {
  if (!engine::IsChosen(0)) return;  // BLAS does not promise it.
  for (const Case& c : All()) {
    const int images = c.bottoms[0][0];
    // Axis 0 is not that of the images there.
    if (c.layer.find("axis: 0") != string::npos) continue;
    SCOPED_TRACE(Describe(c));
    Trial<TypeParam> together(c);
    const Results<TypeParam> whole = together.Forward();
    for (int image = 0; image < std::min(images, 20); ++image) {
      Case one = c;
      for (auto& shape : one.bottoms) shape[0] = 1;
      const Results<TypeParam> alone =
          Trial<TypeParam>(one, false, image).Forward();
      Results<TypeParam> part = whole;
      for (auto& top : part) {
        const int size = top.numbers.size() / images;
        top.numbers =
            Numbers<TypeParam>(top.numbers.begin() + image * size,
                               top.numbers.begin() + (image + 1) * size);
      }
      ExpectSameBits(part, alone);
    }
  }
}

// The threads' memory is used again, and holds anything.
TYPED_TEST(EngineTest, WhatWasComputedBeforeDoesNotMatter) {
  for (const auto& cases : {Convolutions(), InnerProducts()}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(Describe(c));
      const Results<TypeParam> before = Trial<TypeParam>(c).ForwardBackward();
      Trial<TypeParam> spoilt(c);
      spoilt.bottom(0)->scale_data(std::numeric_limits<TypeParam>::quiet_NaN());
      spoilt.ForwardBackward();
      ExpectSameBits(before, Trial<TypeParam>(c).ForwardBackward());
    }
  }
}

// The layers give the engine's own results, and the engine touches nothing
// before or behind its arrays.
TYPED_TEST(EngineTest, ConvolutionStaysInsideOfItsArrays) {
  if (!engine::IsChosen(0)) return;
  for (const Case& c : Convolutions()) {
    if (c.bottoms[0].size() != 4 || c.bottoms.size() > 1) continue;
    SCOPED_TRACE(Describe(c));
    const ConvolutionParameter param = Param(c).convolution_param();
    Trial<TypeParam> trial(c);
    const auto& blobs = trial.layer()->blobs();
    const bool bias = blobs.size() == 2;
    const Blob<TypeParam>&bottom = *trial.bottom(0), &top = *trial.top(0);
    const auto either = [](int both, bool has_own, int own, int none) {
      return has_own ? own : both >= 0 ? both : none;
    };
    // Fields that are given once for both axes, or once for each.
    const auto field = [&](const auto& values, int axis, int none) {
      return values.size() ? values.Get(std::min(axis, values.size() - 1))
                           : none;
    };
    const int no = -1;
    const engine::ConvolutionShape shape = {
        bottom.shape(0),
        bottom.shape(1),
        static_cast<int>(param.num_output()),
        static_cast<int>(param.group()),
        {bottom.shape(2), bottom.shape(3)},
        {blobs[0]->shape(2), blobs[0]->shape(3)},
        {either(field(param.stride(), 0, no), param.has_stride_h(),
                param.stride_h(), 1),
         either(field(param.stride(), 1, no), param.has_stride_w(),
                param.stride_w(), 1)},
        {either(field(param.pad(), 0, no), param.has_pad_h(), param.pad_h(), 0),
         either(field(param.pad(), 1, no), param.has_pad_w(), param.pad_w(),
                0)},
        {static_cast<int>(field(param.dilation(), 0, 1)),
         static_cast<int>(field(param.dilation(), 1, 1))}};
    ASSERT_EQ(top.shape(2), shape.output(0));
    ASSERT_EQ(top.shape(3), shape.output(1));

    // What the gradients are added to.
    const Numbers<TypeParam> w_diff = trial.Diff(*blobs[0]);
    const Numbers<TypeParam> b_diff =
        bias ? trial.Diff(*blobs[1]) : Numbers<TypeParam>();
    trial.ForwardBackward();
    for (bool guard_behind : {false, true}) {
      const auto guarded = [&](const Numbers<TypeParam>& numbers) {
        shared_ptr<Guarded<TypeParam> > array(
            new Guarded<TypeParam>(numbers.size(), guard_behind));
        array->Fill(numbers);
        return array;
      };
      const auto x = guarded(trial.Data(bottom));
      const auto w = guarded(trial.Data(*blobs[0]));
      const auto b =
          guarded(bias ? trial.Data(*blobs[1]) : Numbers<TypeParam>());
      const auto dy = guarded(trial.Diff(top));
      const auto dw = guarded(w_diff), db = guarded(b_diff);
      const Guarded<TypeParam> y(top.count(), guard_behind);
      const Guarded<TypeParam> dx(bottom.count(), guard_behind);
      engine::ConvolutionForward<TypeParam>(
          shape, x->data(), w->data(), bias ? b->data() : nullptr, y.data());
      engine::ConvolutionInputGradient(shape, dy->data(), w->data(), dx.data());
      engine::ConvolutionWeightGradient(shape, x->data(), dy->data(),
                                        dw->data());
      const auto same = [](const TypeParam* a, const TypeParam* b, int count) {
        return std::equal(a, a + count, b);
      };
      EXPECT_TRUE(same(top.cpu_data(), y.data(), top.count()));
      EXPECT_TRUE(same(bottom.cpu_diff(), dx.data(), bottom.count()));
      EXPECT_TRUE(same(blobs[0]->cpu_diff(), dw->data(), blobs[0]->count()));
      if (bias) {
        engine::ConvolutionBiasGradient(shape, dy->data(), db->data());
        EXPECT_TRUE(same(blobs[1]->cpu_diff(), db->data(), blobs[1]->count()));
      }
    }
  }
}

// Against the sum in double precision, for both layouts of both factors.
TYPED_TEST(EngineTest, ProductStaysInsideOfItsArrays) {
  for (int rows : {1, 3, 6, 14, 15, 29}) {
    for (int columns : {1, 2, 7, 8, 16, 17, 33, 65}) {
      for (int depth : {1, 3, 4, 9, 50}) {
        for (int option = 0; option < 32; ++option) {
          const bool a_turned = option & 1, b_turned = option & 2;
          const bool transpose = option & 4, add = option & 8;
          const bool guard_behind = option & 16;
          if (add && transpose) continue;
          SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) +
                       " x " + std::to_string(depth) + " option " +
                       std::to_string(option));
          const Guarded<TypeParam> a(rows * depth, guard_behind);
          const Guarded<TypeParam> b(depth * columns, guard_behind);
          const Guarded<TypeParam> c(rows * columns, guard_behind);
          const Guarded<TypeParam> bias(rows, guard_behind);
          FillNormal(1, rows * depth, a.data());
          FillNormal(2, depth * columns, b.data());
          FillNormal(3, rows * columns, c.data());
          FillNormal(4, rows, bias.data());
          Numbers<TypeParam> expected(rows * columns);
          for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < columns; ++j) {
              const int at = transpose ? j * rows + i : i * columns + j;
              double sum = add ? c.data()[at] : bias.data()[i];
              for (int k = 0; k < depth; ++k) {
                sum += static_cast<double>(
                           a.data()[a_turned ? k * rows + i : i * depth + k]) *
                       b.data()[b_turned ? j * depth + k : k * columns + j];
              }
              expected[at] = sum;
            }
          }
          engine::Start<TypeParam> start;
          start.add = add;
          if (!add) start.row_bias = bias.data();
          engine::Multiply<TypeParam>(
              rows, columns, depth,
              {a.data(), a_turned ? 1 : depth, a_turned ? rows : 1},
              {b.data(), b_turned ? 1 : columns, b_turned ? depth : 1},
              c.data(), transpose ? rows : columns, transpose, start);
          const Numbers<TypeParam> found(c.data(), c.data() + rows * columns);
          ExpectClose<TypeParam>({{"c", expected, 1}}, {{"c", found, 1}},
                                 this->Tolerance());
        }
      }
    }
  }
}

// ---- The team
// ----------------------------------------------------------------

TEST(TeamTest, DoesEachPieceOfWorkOnce) {
  for (int threads : {1, 2, 3, 5, 64}) {
    const WithThreads with_threads(threads);
    EXPECT_EQ(threads, engine::TeamSize());
    for (int n : {0, 1, 2, 3, 7, 1000}) {
      vector<int> times(n);
      engine::ParallelFor(n, [&](int i) { ++times[i]; });
      EXPECT_EQ(vector<int>(n, 1), times) << threads << " threads, " << n;
    }
  }
}

TEST(TeamTest, WorkInsideOfWorkIsDoneByOneThread) {
  const WithThreads with_threads(3);
  vector<int> sizes(10), sums(10);
  engine::ParallelFor(10, [&](int i) {
    sizes[i] = engine::TeamSize();
    engine::ParallelFor(100, [&](int j) { sums[i] += j; });
  });
  EXPECT_EQ(vector<int>(10, 1), sizes);
  EXPECT_EQ(vector<int>(10, 4950), sums);
  EXPECT_EQ(3, engine::TeamSize());
}

// Nets of several threads of a program ask for the team at the same time.
TEST(TeamTest, ServesSeveralThreads) {
  const WithThreads with_threads(3);
  vector<int> wrong(4);
  vector<std::thread> callers;
  for (int caller = 0; caller < wrong.size(); ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 300; ++round) {
        vector<int> found(50);
        engine::ParallelFor(50, [&](int i) { found[i] += round + i; });
        for (int i = 0; i < 50; ++i) wrong[caller] += found[i] != round + i;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(vector<int>(4, 0), wrong);
}

// ---- The solver's update ----------------------------------------------------

// A solver of a net with three parameters of different rates and decays, whose
// gradients the test makes up.
template <typename Dtype>
class UpdateTest : public EngineTest<Dtype> {
 protected:
  static const int kParams = 3;
  // Two more than one thread takes at a time.
  static const int kOutputs = 2, kInputs = (1 << 14) + 1;
  const double rates_[kParams] = {1, 2.5, 0}, decays_[kParams] = {1, 0.5, 3};

  void MakeSolver(const string& options) {
    SolverParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "base_lr: 0.125 lr_policy: 'fixed' random_seed: 1 " + options, &param));
    const string product =
        " inner_product_param { num_output: " + std::to_string(kOutputs) +
        " weight_filler { type: 'gaussian' std: 1 } }";
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "layer { name: 'x' type: 'Input' top: 'x' input_param {"
        " shape { dim: 1 dim: " +
            std::to_string(kInputs) +
            " } } }"
            "layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'" +
            product +
            " param { lr_mult: 1 decay_mult: 1 }"
            " param { lr_mult: 2.5 decay_mult: 0.5 } }"
            "layer { name: 'b' type: 'InnerProduct' bottom: 'a' top: 'b'" +
            product +
            " param { lr_mult: 0 decay_mult: 3 } param { lr_mult: 0 } }",
        param.mutable_net_param()));
    solver_.reset(new SGDSolver<Dtype>(param));
  }

  Blob<Dtype>* Parameter(int i) {
    return solver_->net()->learnable_params()[i];
  }

  void MakeGradients(int seed) {
    for (int i = 0; i < solver_->net()->learnable_params().size(); ++i) {
      FillNormal(seed + i, Parameter(i)->count(),
                 Parameter(i)->mutable_cpu_diff());
    }
  }

  Results<Dtype> State() {
    Results<Dtype> state;
    for (int i = 0; i < kParams; ++i) {
      const string name = "parameter " + std::to_string(i);
      state.push_back({name, Trial<Dtype>::Data(*Parameter(i)), 0});
      state.push_back(
          {name + "'s history", Trial<Dtype>::Data(*solver_->history()[i]), 0});
    }
    return state;
  }

  double GradientNorm() {
    long double sum = 0;
    for (Blob<Dtype>* blob : solver_->net()->learnable_params()) {
      for (long double x : Trial<Dtype>::Diff(*blob)) sum += x * x;
    }
    return std::sqrt(sum);
  }

  // Three updates against the formula, in double precision; options are numbers
  // that single precision has.
  //   g = clip / iter_size gradient + decay w   (or decay sign(w))
  //   h = momentum h + rate g;  w = w - h
  void ExpectFormula(const string& options, double momentum, double decay,
                     double iter_size, double clip, bool l1) {
    SCOPED_TRACE(options);
    MakeSolver(options);
    vector<vector<double> > w(kParams), h(kParams);
    for (int i = 0; i < kParams; ++i) {
      const Numbers<Dtype> start = Trial<Dtype>::Data(*Parameter(i));
      w[i].assign(start.begin(), start.end());
      h[i].assign(start.size(), 0);
    }
    const Numbers<Dtype> frozen = Trial<Dtype>::Data(*Parameter(2));
    for (int step = 0; step < 3; ++step) {
      MakeGradients(10 * step);
      const double norm = GradientNorm();
      const double scale =
          (clip > 0 && norm > clip ? clip / norm : 1) / iter_size;
      for (int i = 0; i < kParams; ++i) {
        for (int j = 0; j < w[i].size(); ++j) {
          const double pull = l1 ? (w[i][j] > 0) - (w[i][j] < 0) : w[i][j];
          const double g =
              scale * Parameter(i)->cpu_diff()[j] + decay * decays_[i] * pull;
          h[i][j] = momentum * h[i][j] + 0.125 * rates_[i] * g;
          w[i][j] -= h[i][j];
        }
      }
      solver_->ApplyUpdate();
      EXPECT_EQ(step + 1, solver_->iter());
      Results<Dtype> expected = State();
      for (int i = 0; i < kParams; ++i) {
        expected[2 * i].numbers.assign(w[i].begin(), w[i].end());
        expected[2 * i + 1].numbers.assign(h[i].begin(), h[i].end());
      }
      ExpectClose<Dtype>(expected, State(), this->Tolerance());
    }
    EXPECT_EQ(frozen, Trial<Dtype>::Data(*Parameter(2)));
  }

  shared_ptr<SGDSolver<Dtype> > solver_;
};
TYPED_TEST_CASE(UpdateTest, TestDtypes);

TYPED_TEST(UpdateTest, IsTheFormula) {
  this->ExpectFormula("", 0, 0, 1, 0, false);
  this->ExpectFormula("momentum: 0.875", 0.875, 0, 1, 0, false);
  this->ExpectFormula("weight_decay: 0.25", 0, 0.25, 1, 0, false);
  this->ExpectFormula("momentum: 0.875 weight_decay: 0.25 iter_size: 4", 0.875,
                      0.25, 4, 0, false);
  this->ExpectFormula("momentum: 0.875 weight_decay: 0.25 clip_gradients: 7",
                      0.875, 0.25, 1, 7, false);
  this->ExpectFormula("clip_gradients: 1e9", 0, 0, 1, 1e9, false);
  this->ExpectFormula(
      "momentum: 0.5 weight_decay: 0.25 regularization_type: 'L1' iter_size: 2",
      0.5, 0.25, 2, 0, true);
}

TYPED_TEST(UpdateTest, SameBitsForAnyNumberOfThreads) {
  Results<TypeParam> alone;
  for (int threads : {1, 2, 3, 5}) {
    const WithThreads with_threads(threads);
    this->MakeSolver("momentum: 0.875 weight_decay: 0.25 clip_gradients: 7");
    for (int step = 0; step < 2; ++step) {
      this->MakeGradients(step);
      this->solver_->ApplyUpdate();
    }
    if (threads == 1) alone = this->State();
    ExpectSameBits(alone, this->State());
  }
}

}  // namespace caffe
