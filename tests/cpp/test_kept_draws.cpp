// Draws that are kept from one call to the next: which are, which are dropped,
// and that Monte Carlo inference uses them.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "caffe/bayes/kept_draws.hpp"
#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/layer.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/net.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

class KeptDrawsTest : public ::testing::Test {
 protected:
  typedef bayes::KeptDraws<float> Kept;
  const size_t kDrawBytes = 128;

  KeptDrawsTest() : m_(20000), delta_(1) {
    for (int i = 0; i < m_.size(); ++i) m_[i] = i;
  }

  // A budget for so many draws.
  size_t Budget(int draws) const {
    return (m_.size() + delta_.size()) * sizeof(float) + draws * kDrawBytes;
  }
  void Update(Kept* kept) const {
    kept->Update({{m_.data(), static_cast<int>(m_.size())},
                  {delta_.data(), static_cast<int>(delta_.size())}},
                 kDrawBytes);
  }
  // For each draw: 'k' if it is kept, 'n' if it is new and has a place from now
  // on, '-' if it has none.
  string Use(Kept* kept, const std::vector<uint64_t>& draws) const {
    string text;
    Update(kept);
    for (Kept::Place* place : kept->Find(draws)) {
      text += !place ? '-' : place->is_drawn ? 'k' : 'n';
      if (place) std::fill_n(place->memory.get(), kDrawBytes, 'x');
      if (place) drawn_.push_back(place);
    }
    for (Kept::Place* place : drawn_) place->is_drawn = true;
    drawn_.clear();
    return text;
  }

  std::vector<float> m_, delta_;
  mutable std::vector<Kept::Place*> drawn_;
};

TEST_F(KeptDrawsTest, AreThereAgain) {
  Kept kept(Budget(9));
  EXPECT_EQ("nnn", Use(&kept, {0, 1, 2}));
  EXPECT_EQ("kknkn", Use(&kept, {2, 0, uint64_t(1) << 40, 1, 5}));
  EXPECT_EQ("kkkkk", Use(&kept, {0, 1, 2, 5, uint64_t(1) << 40}));
}

TEST_F(KeptDrawsTest, AreDroppedWhenAnyBitOfAParameterChanges) {
  Kept kept(Budget(9));
  EXPECT_EQ("nn", Use(&kept, {0, 1}));
  for (float* number : {&m_.front(), &m_[9999], &m_.back(), &delta_[0]}) {
    EXPECT_EQ("kk", Use(&kept, {0, 1}));
    *number = std::nextafter(*number, 1e9f);
    EXPECT_EQ("nn", Use(&kept, {0, 1}));
  }
  m_[0] = 0.0f;
  EXPECT_EQ("nn", Use(&kept, {0, 1}));
  m_[0] = -0.0f;
  EXPECT_EQ("nn", Use(&kept, {0, 1}));
  m_[0] = std::nanf("");
  EXPECT_EQ("nn", Use(&kept, {0, 1}));
  EXPECT_EQ("kk", Use(&kept, {0, 1}));
}

TEST_F(KeptDrawsTest, StayWithinTheirBudget) {
  Kept none(Budget(1) - 1), two(Budget(3) - 1);
  EXPECT_EQ("--", Use(&none, {0, 1}));
  EXPECT_EQ("--", Use(&none, {0, 1}));
  EXPECT_EQ("nn--", Use(&two, {0, 1, 2, 3}));
  // The first ones stay, as a cycle through all would find none otherwise.
  EXPECT_EQ("kk--", Use(&two, {0, 1, 2, 3}));
  // Those that are not asked for leave, as far as they must.
  EXPECT_EQ("nk", Use(&two, {7, 1}));
  EXPECT_EQ("k", Use(&two, {7}));
  EXPECT_EQ("nn", Use(&two, {8, 9}));
  EXPECT_EQ("kk", Use(&two, {8, 9}));
}

TEST_F(KeptDrawsTest, OfOneIndexHaveOnePlace) {
  Kept kept(Budget(9));
  EXPECT_EQ("n-n", Use(&kept, {4, 4, 5}));
  EXPECT_EQ("kkk", Use(&kept, {4, 4, 5}));
}

TEST_F(KeptDrawsTest, ThatWereNeverDrawnAreNotThere) {
  Kept kept(Budget(2));
  Update(&kept);
  kept.Find({0, 1});  // and nothing is drawn
  EXPECT_EQ("nn", Use(&kept, {1, 2}));
}

}  // namespace

// A layer with one parameter m, whose draw k is m + k.
template <typename Dtype>
class ShiftLayer : public Layer<Dtype>, public bayes::Stochastic {
 public:
  explicit ShiftLayer(const LayerParameter& param) : Layer<Dtype>(param) {}
  void LayerSetUp(const vector<Blob<Dtype>*>&,
                  const vector<Blob<Dtype>*>&) override {
    this->blobs_.assign(
        1, shared_ptr<Blob<Dtype> >(new Blob<Dtype>(vector<int>(1, 1))));
  }
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override {
    top[0]->ReshapeLike(*bottom[0]);
  }
  const char* type() const override { return "Shift"; }
  size_t draw_bytes() const override { return 64; }
  void PlaceDraw(void* place, bool is_drawn) override {
    place_ = static_cast<Dtype*>(place);
    is_drawn_ = is_drawn;
  }
  // How often any layer of this type has drawn.
  static std::atomic<int>& Drawn() {
    static std::atomic<int> drawn(0);
    return drawn;
  }

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    const uint64_t draw = TakeDraw();
    Dtype* place = place_ ? place_ : &own_;
    if (!held() && !is_drawn_) {
      *place = this->blobs_[0]->cpu_data()[0] + draw;
      ++Drawn();
    }
    for (int i = 0; i < top[0]->count(); ++i) {
      top[0]->mutable_cpu_data()[i] = bottom[0]->cpu_data()[i] + *place;
    }
  }
  void Backward_cpu(const vector<Blob<Dtype>*>&, const vector<bool>&,
                    const vector<Blob<Dtype>*>&) override {}

 private:
  Dtype* place_ = nullptr;
  Dtype own_ = 0;
  bool is_drawn_ = false;
};
REGISTER_LAYER_CLASS(Shift);
INSTANTIATE_CLASS(ShiftLayer);

namespace {

class KeptDrawsOfNetTest : public CPUDeviceTest<float> {
 protected:
  KeptDrawsOfNetTest() {
    NetParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "layer { name: 'x' type: 'Input' top: 'x'"
        "        input_param { shape { dim: 2 dim: 1 } } }"
        "layer { name: 'a' type: 'Shift' bottom: 'x' top: 'a' }"
        "layer { name: 'b' type: 'Shift' bottom: 'a' top: 'b' }",
        &param));
    param.mutable_state()->set_phase(TEST);
    net_.reset(new Net<float>(param));
    Set("a", 10);
    Set("b", 100);
  }

  void Set(const string& layer, float m) {
    net_->layer_by_name(layer)->blobs()[0]->mutable_cpu_data()[0] = m;
  }
  // Runs 3 images through draws, checks the results, and returns how many draws
  // of a layer there were.
  int Draw(bayes::MonteCarlo<float>* monte_carlo,
           const vector<uint64_t>& draws) {
    vector<float> x = {1, 2, 3}, out(draws.size() * x.size());
    const auto source = [&](int first, int) { return &x[first]; };
    ShiftLayer<float>::Drawn() = 0;
    EXPECT_TRUE(monte_carlo->Run(draws, x.size(), {{"x", source}}, {},
                                 out.data(), [](double) { return true; }));
    const float a = net_->layer_by_name("a")->blobs()[0]->cpu_data()[0];
    const float b = net_->layer_by_name("b")->blobs()[0]->cpu_data()[0];
    for (int i = 0; i < out.size(); ++i) {
      const uint64_t draw = draws[i / x.size()];
      EXPECT_EQ(x[i % x.size()] + a + b + 2 * draw, out[i]) << i;
    }
    return ShiftLayer<float>::Drawn();
  }

  shared_ptr<Net<float> > net_;
};

// A batch of 2 images is left as it is, so 3 images are two portions.
TEST_F(KeptDrawsOfNetTest, AreNotDrawnAgain) {
  bayes::MonteCarlo<float> kept(net_.get(), "b", 1 << 20);
  bayes::MonteCarlo<float> fresh(net_.get(), "b");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(10, Draw(&fresh, {0, 1, 2, 3, 4}));
  EXPECT_EQ(10, Draw(&kept, {0, 1, 2, 3, 4}));
  EXPECT_EQ(0, Draw(&kept, {4, 3, 2, 1, 0}));
  EXPECT_EQ(2, Draw(&kept, {0, 7, 1, 2, 3, 4}));
  Set("b", 200);
  EXPECT_EQ(12, Draw(&kept, {0, 7, 1, 2, 3, 4}));
  EXPECT_EQ(0, Draw(&kept, {0, 7, 1, 2, 3, 4}));
}

// With one draw and two portions, two threads may share the draw.
TEST_F(KeptDrawsOfNetTest, OfWhichThreadsShareOne) {
  bayes::MonteCarlo<float> kept(net_.get(), "b", 1 << 20);
  EXPECT_LE(2, Draw(&kept, {3}));
  EXPECT_EQ(0, Draw(&kept, {3}));
}

// Two parameters and two draws of 2 x 64 bytes.
TEST_F(KeptDrawsOfNetTest, AreAsManyAsFit) {
  bayes::MonteCarlo<float> kept(net_.get(), "b", 2 * 4 + 2 * 128);
  EXPECT_EQ(10, Draw(&kept, {0, 1, 2, 3, 4}));
  EXPECT_EQ(6, Draw(&kept, {0, 1, 2, 3, 4}));
}

}  // namespace

}  // namespace caffe
