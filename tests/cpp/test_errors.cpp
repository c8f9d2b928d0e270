// Errors: what a failed CHECK throws, and that it comes out of layers, the team
// of threads and Monte Carlo inference with all in order behind it.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/layer.hpp"
#include "caffe/layer_factory.hpp"
#include "caffe/net.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/util/benchmark.hpp"
#include "caffe/util/printable.hpp"
#include "caffe/util/rng.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

string FailingText() {
  CHECK_LT(2, 1) << "while telling";
  return "";
}

int NoReturnNeeded(int i) {
  if (i > 0) return i;
  LOG(FATAL) << "i is " << i;
}

}  // namespace

TEST(ErrorTest, TellsWhatAndWhere) {
  try {
    const int two = 2;
    CHECK_EQ(two, 3) << "is no " << 3;
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("Check failed: two == 3 (2 vs. 3) is no 3", error.message());
    EXPECT_EQ(__LINE__ - 4, error.line());
    EXPECT_NE(string::npos, error.file().find("test_errors.cpp"));
    EXPECT_EQ(error.file() + ":" + std::to_string(error.line()) + ": " +
                  error.message(),
              error.what());
  }
}

TEST(ErrorTest, EveryFatalMacroThrows) {
  int* null = nullptr;
  EXPECT_ERROR(CHECK(1 > 2) << "really", ": Check failed: 1 > 2 really$");
  EXPECT_ERROR(CHECK(1 > 2), ": Check failed: 1 > 2$");
  EXPECT_ERROR(CHECK_GE(string("a"), "b"), "(a vs. b)");
  EXPECT_ERROR(CHECK_NOTNULL(null), "null must not be null");
  EXPECT_ERROR(LOG_IF(FATAL, true) << "if", ": if$");
  EXPECT_ERROR(NOT_IMPLEMENTED, "Not Implemented Yet");
  EXPECT_ERROR(NoReturnNeeded(0), "i is 0");
  CHECK(true) << FailingText();
  CHECK_NE(1, 2) << FailingText();
}

// glog's way, a destructor that ends the message, would end the process here.
TEST(ErrorTest, MessageMayThrowToo) {
  EXPECT_ERROR(CHECK(false) << FailingText(), "while telling");
}

TEST(ErrorTest, PlaceIsNamedOnce) {
  Error error("a.cpp", 7, "all wrong");
  error.Name("layer 'one'");
  EXPECT_STREQ("a.cpp:7: layer 'one': all wrong", error.what());
  error.Name("layer 'one'");
  EXPECT_STREQ("a.cpp:7: layer 'one': all wrong", error.what());
}

TEST(ErrorTest, DestructorsOnlyLogIt) {
  bool went_on = true;
  LogErrors([&] {
    CHECK(false) << "(the log of this test shows this)";
    went_on = false;
  });
  EXPECT_TRUE(went_on);
#ifdef CPU_ONLY
  {
    Timer timer;
    Caffe::set_mode(Caffe::GPU);  // Its destructor then wants a GPU.
  }
  Caffe::set_mode(Caffe::CPU);
#endif
}

class TeamErrorTest : public ::testing::TestWithParam<int> {
 protected:
  TeamErrorTest() : before_(engine::TeamSize()) {
    engine::SetTeamSize(GetParam());
  }
  ~TeamErrorTest() override { engine::SetTeamSize(before_); }

  // The team still does each piece of work once.
  void ExpectTeamInOrder() {
    EXPECT_EQ(GetParam(), engine::TeamSize());
    vector<int> times(200);
    engine::ParallelFor(times.size(), [&](int i) { ++times[i]; });
    EXPECT_EQ(vector<int>(200, 1), times);
  }

 private:
  const int before_;
};

TEST_P(TeamErrorTest, ReachesTheCaller) {
  for (int round = 0; round < 300; ++round) {
    // The first of them is the caller's own, the last a helper's.
    const int wrong = round % 3 * 49;
    EXPECT_ERROR(engine::ParallelFor(
                     99, [&](int i) { CHECK_NE(i, wrong) << "piece " << i; }),
                 "piece " + std::to_string(wrong) + "$");
  }
  ExpectTeamInOrder();
}

TEST_P(TeamErrorTest, OneOfManyReachesTheCallerAndTheRestIsNotBegun) {
  std::atomic<int> begun(0);
  EXPECT_ERROR(engine::ParallelFor(100000,
                                   [&](int i) {
                                     ++begun;
                                     LOG(FATAL) << "piece " << i;
                                   }),
               "piece [0-9]+$");
  EXPECT_LE(begun, GetParam());
  ExpectTeamInOrder();
}

TEST_P(TeamErrorTest, KeepsItsTypeAndPassesThroughWorkInsideOfWork) {
  EXPECT_THROW(engine::ParallelFor(10,
                                   [&](int i) {
                                     engine::ParallelFor(10, [&](int j) {
                                       if (i == 7 && j == 7) throw 7.5f;
                                     });
                                   }),
               float);
  ExpectTeamInOrder();
}

TEST_P(TeamErrorTest, GoesToTheThreadWhoseWorkItWas) {
  std::atomic<int> wrong(0);
  vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        int caught = -1;
        try {
          engine::ParallelFor(20, [&](int i) {
            if (i == 13) throw t;
          });
        } catch (int thrown) {
          caught = thrown;
        }
        if (caught != t) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(0, wrong);
  ExpectTeamInOrder();
}

INSTANTIATE_TEST_CASE_P(Threads, TeamErrorTest, ::testing::Values(1, 2, 5));

// Passes on what it gets, but fails in the passes that it is told of.
template <typename Dtype>
class FailingLayer : public Layer<Dtype> {
 public:
  explicit FailingLayer(const LayerParameter& param) : Layer<Dtype>(param) {}
  void Reshape(const vector<Blob<Dtype>*>& bottom,
               const vector<Blob<Dtype>*>& top) override {
    CHECK_NE(bottom[0]->shape(0), 13) << "an unlucky batch";
    top[0]->ReshapeLike(*bottom[0]);
  }
  const char* type() const override { return "Failing"; }

  // Counts down with each pass of any layer of this type.
  static std::atomic<int>& PassesLeft() {
    static std::atomic<int> passes(0);
    return passes;
  }

 protected:
  void Forward_cpu(const vector<Blob<Dtype>*>& bottom,
                   const vector<Blob<Dtype>*>& top) override {
    top[0]->ShareData(*bottom[0]);
    CHECK_NE(--PassesLeft(), 0) << "this pass fails";
  }
  void Backward_cpu(const vector<Blob<Dtype>*>&, const vector<bool>&,
                    const vector<Blob<Dtype>*>&) override {
    LOG(FATAL) << "no way back";
  }
};
REGISTER_LAYER_CLASS(Failing);
INSTANTIATE_CLASS(FailingLayer);

class NetErrorTest : public CPUDeviceTest<float> {
 protected:
  NetErrorTest() {
    Caffe::set_random_seed(1701);
    NetParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "layer { name: 'x' type: 'Input' top: 'x'"
        "        input_param { shape { dim: 4 dim: 3 } } }"
        "layer { name: 'ip' type: 'BayesInnerProduct' bottom: 'x' top: 'ip'"
        "        inner_product_param {"
        "          num_output: 5 weight_filler { type: 'xavier' } }"
        "        bayes_param { kl_weight: 0 } }"
        "layer { name: 'scale' type: 'Scale' bottom: 'ip' top: 'scale'"
        "        scale_param { filler { type: 'gaussian' std: 1 } } }"
        "layer { name: 'weak' type: 'Failing' bottom: 'scale' top: 'weak' }",
        &param));
    param.set_force_backward(true);
    FailingLayer<float>::PassesLeft() = 0;
    net_.reset(new Net<float>(param));
    images_.resize(48 * 3);
    std::iota(images_.begin(), images_.end(), -70);
  }

  vector<float> Sample(bayes::MonteCarlo<float>* monte_carlo) {
    vector<float> out(6 * 48 * 5);
    const auto source = [&](int first, int) { return &images_[first * 3]; };
    EXPECT_TRUE(monte_carlo->Run({0, 1, 2, 3, 4, 5}, 48, {{"x", source}}, {},
                                 out.data(), [](double) { return true; }));
    return out;
  }

  shared_ptr<Net<float> > net_;
  vector<float> images_;
};

TEST_F(NetErrorTest, NamesTheLayer) {
  FailingLayer<float>::PassesLeft() = 1;
  EXPECT_ERROR(net_->Forward(), ": layer 'weak': Check failed: .*this pass");
  EXPECT_ERROR(net_->Backward(), ": layer 'weak': no way back$");
  net_->blob_by_name("x")->Reshape({13, 3});
  EXPECT_ERROR(net_->Reshape(), ": layer 'weak': .*an unlucky batch$");
  net_->blob_by_name("x")->Reshape({4, 3});
  net_->Reshape();
  net_->Forward();
}

TEST_F(NetErrorTest, ComesOutOfMonteCarloInference) {
  const int before = engine::TeamSize();
  for (int threads : {1, 2, 5}) {
    engine::SetTeamSize(threads);
    bayes::MonteCarlo<float> monte_carlo(net_.get(), "weak");
    const vector<float> expected = Sample(&monte_carlo);
    for (int pass : {1, 2, 30}) {
      FailingLayer<float>::PassesLeft() = pass;
      EXPECT_ERROR(Sample(&monte_carlo), "layer 'weak': .*this pass fails$");
      FailingLayer<float>::PassesLeft() = 0;
      EXPECT_EQ(expected, Sample(&monte_carlo));
    }
  }
  engine::SetTeamSize(before);
}

TEST_F(NetErrorTest, LeavesTheStreamOfRandomNumbersAlone) {
  // Shapes that only a copy of the net, which is set up anew, refuses.
  for (const char* blob : {"x", "weak"}) {
    net_->blob_by_name(blob)->Reshape({13, 3});
  }
  const rng_t expected = *caffe_rng();
  EXPECT_ERROR(bayes::MonteCarlo<float>(net_.get(), "weak"), "unlucky batch");
  EXPECT_TRUE(expected == *caffe_rng());
}

TEST(PrintableTest, EscapesWhatControlsATerminal) {
  const string kept = "a\tb\n\xc3\xa4\xe2\x82\xac \xf0\x9f\x98\x80 ~";
  EXPECT_EQ(kept, Printable(kept));
  EXPECT_EQ("\\x1b[31m\\x07\\x0d\\x7f", Printable("\x1b[31m\a\r\x7f"));
  EXPECT_EQ("\\xc2\\x9b2J", Printable("\xc2\x9b"
                                      "2J"));
  EXPECT_EQ("\\xe2\\x80\\xaetxt", Printable("\xe2\x80\xaetxt"));
  EXPECT_EQ("\\x9b|\\xff|\\xc3", Printable("\x9b|\xff|\xc3"));
  EXPECT_EQ("\\xed\\xa0\\x80", Printable("\xed\xa0\x80"));
  EXPECT_EQ(string("\\x00", 4), Printable(string(1, 0)));
}

}  // namespace caffe
