// The CPU engine against Caffe's own code, over lists of shapes: outputs and
// gradients, and the same bits for any number of threads and any batch.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "caffe/engine/engine.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "engine_trial.hpp"

namespace caffe {

template <typename Dtype>
class EngineTest : public CPUDeviceTest<Dtype> {
 protected:
  static Dtype Tolerance() { return EngineTolerance<Dtype>(); }

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
    if (!IsMaxPooling(c)) return;
    const PoolingParameter param = Param(c).pooling_param();
    Trial<Dtype> trial(c);
    change(trial.bottom(0));
    const Results<Dtype> results = trial.ForwardBackward();
    const Blob<Dtype>&bottom = *trial.bottom(0), &top = *trial.top(0);
    const auto either = [](int own, int both) { return own ? own : both; };
    const bool global = param.global_pooling();
    const int kernel_h = global ? bottom.height()
                                : either(param.kernel_h(), param.kernel_size());
    const int kernel_w =
        global ? bottom.width() : either(param.kernel_w(), param.kernel_size());
    const int stride_h = either(param.stride_h(), param.stride());
    const int stride_w = either(param.stride_w(), param.stride());
    Numbers<Dtype> expected(bottom.count());
    for (int i = 0; i < top.count(); ++i) {
      const int plane = i / (top.height() * top.width());
      const int y = i / top.width() % top.height() * stride_h -
                    either(param.pad_h(), param.pad());
      const int x =
          i % top.width() * stride_w - either(param.pad_w(), param.pad());
      Dtype largest = -std::numeric_limits<float>::max();
      int where = -1;
      const int bottom_end = std::min(y + kernel_h, bottom.height());
      const int right_end = std::min(x + kernel_w, bottom.width());
      for (int h = std::max(0, y); h < bottom_end; ++h) {
        for (int w = std::max(0, x); w < right_end; ++w) {
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

TYPED_TEST(EngineTest, BayesianLayersAreUpstreams) {
  this->ExpectLikeUpstream(BayesLayers(), this->Tolerance());
}

TYPED_TEST(EngineTest, InnerProductIsUpstreams) {
  this->ExpectLikeUpstream(InnerProducts(), this->Tolerance());
}

TYPED_TEST(EngineTest, SoftmaxIsUpstreams) {
  this->ExpectLikeUpstream(Softmaxes(), this->Tolerance());
}

TYPED_TEST(EngineTest, LrnIsUpstreams) {
  this->ExpectLikeUpstream(Lrns(), this->Tolerance());
}

TYPED_TEST(EngineTest, BatchNormIsUpstreams) {
  this->ExpectLikeUpstream(BatchNorms(), this->Tolerance());
}

TYPED_TEST(EngineTest, EltwiseIsUpstreams) {
  this->ExpectLikeUpstream(Eltwises(), this->Tolerance());
}

TYPED_TEST(EngineTest, ActivationsAreUpstreams) {
  this->ExpectLikeUpstream(Activations(), this->Tolerance());
}

TYPED_TEST(EngineTest, SplitIsUpstreams) {
  this->ExpectLikeUpstream(Splits(), this->Tolerance());
}

// Gradients of parameters are added to what is there. Upstream forgets to where
// there is one number for each parameter, or one image.
TYPED_TEST(EngineTest, ScaleIsUpstreams) {
  if (!engine::IsChosen(0)) return;
  for (const Case& c : Scales()) {
    SCOPED_TRACE(Describe(c));
    Trial<TypeParam> trial(c), upstream(c, true);
    const int params = trial.layer()->blobs().size();
    vector<Numbers<TypeParam> > before;
    for (int i = 0; i < params; ++i) {
      Blob<TypeParam>* blob = upstream.layer()->blobs()[i].get();
      before.push_back(upstream.Diff(*blob));
      blob->scale_diff(0);
    }
    Results<TypeParam> expected = upstream.ForwardBackward();
    for (int i = 0; i < params; ++i) {
      Numbers<TypeParam>& gradient = expected[2 + 2 * i].numbers;
      for (int j = 0; j < gradient.size(); ++j) gradient[j] += before[i][j];
    }
    ExpectClose(expected, trial.ForwardBackward(), this->Tolerance());
  }
}

// Where numbers are far from 0, the difference of mean squares has no digit of
// the variance left.
TYPED_TEST(EngineTest, BatchNormOfNumbersFarFromZero) {
  if (!engine::IsChosen(0)) return;
  for (const Case& c : BatchNorms()) {
    const vector<int>& shape = c.bottoms[0];
    if (c.layer.find("use_global_stats: true") != string::npos) continue;
    SCOPED_TRACE(Describe(c));
    Trial<TypeParam> trial(c);
    const double eps = Param(c).batch_norm_param().eps();
    const int count = trial.bottom(0)->count(), channels = shape[1];
    const int length = trial.bottom(0)->count(2), rows = count / length;
    vector<double> mean(channels), variance(channels), x(count);
    TypeParam* data = trial.bottom(0)->mutable_cpu_data();
    for (int i = 0; i < count; ++i) x[i] = data[i] += 30000;
    const auto channel = [&](int i) { return i / length % channels; };
    const double numbers = static_cast<double>(rows / channels) * length;
    for (int i = 0; i < count; ++i) mean[channel(i)] += x[i] / numbers;
    for (int i = 0; i < count; ++i) {
      variance[channel(i)] += std::pow(x[i] - mean[channel(i)], 2) / numbers;
    }
    Results<TypeParam> expected = trial.Forward();
    for (int i = 0; i < count; ++i) {
      expected[0].numbers[i] =
          (x[i] - mean[channel(i)]) / std::sqrt(variance[channel(i)] + eps);
    }
    // A few units in the last place of the mean, in standard deviations.
    ExpectClose(expected, {{"top 0", trial.Data(*trial.top(0)), 0}},
                std::numeric_limits<TypeParam>::epsilon() * 90000);
  }
}

// Each gradient of a layer that has several, wanted or not.
TYPED_TEST(EngineTest, ScaleHasTheGradientsThatAreWanted) {
  if (!engine::IsChosen(0)) return;
  for (const Case& c : Scales()) {
    const Results<TypeParam> all = Trial<TypeParam>(c).ForwardBackward();
    const int params = Trial<TypeParam>(c).layer()->blobs().size();
    const int bottoms = c.bottoms.size();
    for (int wanted = 0; wanted < 1 << (params + bottoms); ++wanted) {
      SCOPED_TRACE(Describe(c) + " wanted " + std::to_string(wanted));
      Trial<TypeParam> trial(c);
      const auto is_wanted = [&](int i) { return wanted >> i & 1; };
      Results<TypeParam> expected = all;
      for (int i = 0; i < params; ++i) {
        trial.layer()->set_param_propagate_down(i, is_wanted(i));
        if (is_wanted(i)) continue;
        expected[2 + 2 * i].numbers = trial.Diff(*trial.layer()->blobs()[i]);
      }
      for (int i = 0; i < bottoms; ++i) {
        const int result = 1 + 2 * params + i;
        trial.propagate_down()[i] = is_wanted(params + i);
        if (is_wanted(params + i)) continue;
        // In place, it is the top's.
        expected[result].numbers = trial.Diff(*trial.bottom(i));
        if (i == 0 && c.tops == 0) {
          FillNormal(400, trial.bottom(0)->count(),
                     expected[result].numbers.data());
        }
      }
      ExpectSameBits(expected, trial.ForwardBackward());
    }
  }
}

TYPED_TEST(EngineTest, ActivationsOfInfinityAndNaN) {
  const TypeParam inf = std::numeric_limits<TypeParam>::infinity();
  const TypeParam special[] = {inf, -inf, TypeParam(NAN)};
  for (const Case& c : Activations()) {
    this->ExpectLikeUpstream(c, this->Tolerance(), false,
                             [&](Blob<TypeParam>* bottom) {
                               TypeParam* x = bottom->mutable_cpu_data();
                               for (int i = 0; i < bottom->count(); i += 5)
                                 x[i] = special[i % 3];
                             });
  }
}

// Each number has a small error of its own size: also where functions are close
// to 0.
TYPED_TEST(EngineTest, ActivationsOfSmallAndLargeNumbers) {
  if (!engine::IsChosen(0)) return;
  const std::map<string, std::function<double(double)> > formulas = {
      {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"TanH", [](double x) { return std::tanh(x); }},
      {"ELU", [](double x) { return x > 0 ? x : std::expm1(x); }},
      {"Swish", [](double x) { return x / (1 + std::exp(-x)); }}};
  const int n = 37;
  for (const auto& formula : formulas) {
    for (double x : {1e-30, 1e-7, 1e-4, 1e-2, 0.3, 0.7, 1.0, 2.0, 5.0, 20.0,
                     80.0, 87.5, 100.0, 1e30}) {
      for (TypeParam input : {-x, x}) {
        SCOPED_TRACE(formula.first + " of " + std::to_string(input));
        Trial<TypeParam> trial({"type: '" + formula.first + "'", {{1, n}}, 1});
        caffe_set(n, input, trial.bottom(0)->mutable_cpu_data());
        const TypeParam y = formula.second(input);
        // Below this, single precision has no more of them.
        const TypeParam tiny = 1e-30;
        ExpectClose<TypeParam>({{"top 0", Numbers<TypeParam>(n, y), tiny}},
                               trial.Forward(), this->Tolerance());
      }
    }
  }
}

// Which of several that are the same is the largest.
TYPED_TEST(EngineTest, EltwiseOfTies) {
  for (const Case& c : Eltwises()) {
    if (c.layer.find("MAX") == string::npos) continue;
    SCOPED_TRACE(Describe(c));
    Results<TypeParam> results[2];
    for (bool upstream : {false, true}) {
      Trial<TypeParam> trial(c, upstream);
      for (int i = 0; i < c.bottoms.size(); ++i) {
        TypeParam* x = trial.bottom(i)->mutable_cpu_data();
        for (int j = 0; j < trial.bottom(i)->count(); ++j) {
          x[j] = (j + i) % 7 ? std::round(x[j]) : TypeParam(NAN);
        }
      }
      results[upstream] = trial.ForwardBackward();
    }
    ExpectSameBits(results[1], results[0]);
  }
}

TYPED_TEST(EngineTest, ConcatIsUpstreams) {
  this->ExpectLikeUpstream(Concats(), 0);
}

// Maxima and ReLU move numbers about, and are the same to the bit.
TYPED_TEST(EngineTest, PoolingIsUpstreams) {
  for (const Case& c : Poolings()) {
    this->ExpectLikeUpstream(vector<Case>{c},
                             IsMaxPooling(c) ? 0 : this->Tolerance());
  }
}

TYPED_TEST(EngineTest, ReluIsUpstreams) {
  this->ExpectLikeUpstream(Relus(), 0);
}

// Of numbers that are the same, the first is the maximum.
TYPED_TEST(EngineTest, PoolingOfTies) {
  for (const Case& c : Poolings()) {
    if (!IsMaxPooling(c)) continue;
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
    const TypeParam tolerance = IsMaxPooling(c) ? 0 : this->Tolerance();
    this->ExpectLikeUpstream(c, tolerance, !IsMaxPooling(c), spoil);
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

// Windows with so much padding that the engine leaves them to upstream, and
// some less.
TYPED_TEST(EngineTest, PoolingOfWindowsLargerThanTheImage) {
  for (const char* method : {"MAX", "AVE"}) {
    for (int kernel : {20, 150, 3000}) {
      const string width = std::to_string(kernel);
      const string pad = std::to_string(kernel - 1);
      const Case c = {string("type: 'Pooling' pooling_param { pool: ") +
                          method +
                          " kernel_h: 2 pad_h: 1 stride: 1 kernel_w: " + width +
                          " pad_w: " + pad + " }",
                      {{1, 2, 4, 5}},
                      1};
      this->ExpectLikeUpstream(vector<Case>{c}, this->Tolerance());
    }
  }
}

// Upstream's sums over channels spoil all channels behind the one with NaN or
// infinity.
TYPED_TEST(EngineTest, LrnOfInfinityAndNaN) {
  for (const Case& c : Lrns()) {
    for (TypeParam special : {std::numeric_limits<TypeParam>::infinity(),
                              std::numeric_limits<TypeParam>::quiet_NaN()}) {
      this->ExpectLikeUpstream(
          c, this->Tolerance(), true, [=](Blob<TypeParam>* bottom) {
            const int count = bottom->count();
            for (int i = count / 3; i < count; i += 1 + count / 3) {
              bottom->mutable_cpu_data()[i] = special;
            }
          });
    }
  }
}

// Scales from where numbers have no exponent of their own to the largest. The
// numbers of a blob are of about one size: from sums over channels that fall,
// as upstream makes them, rounding leaves little.
TYPED_TEST(EngineTest, LrnOfSmallAndLargeNumbers) {
  for (const Case& c : Lrns()) {
    for (double scale : {0.0, 1e-20, 1e-3, 1e5, 1e15}) {
      this->ExpectLikeUpstream(c, this->Tolerance(), false,
                               [=](Blob<TypeParam>* bottom) {
                                 TypeParam* x = bottom->mutable_cpu_data();
                                 for (int i = 0; i < bottom->count(); ++i) {
                                   x[i] = x[i] > 0 ? scale : -1.5 * scale;
                                 }
                               });
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
      InnerProducts()[0],
      Poolings()[1],
      Poolings().back(),
      Relus()[5]};
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
    // Axis 0 is not that of the images there, or images are mixed.
    if (c.layer.find("axis: 0") != string::npos ||
        c.layer.find("use_global_stats: false") != string::npos ||
        c.bottoms.back().front() != images) {
      continue;
    }
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
  for (const auto& cases : {Convolutions(), InnerProducts(), Poolings(), Lrns(),
                            BatchNorms(), Scales()}) {
    for (const Case& c : cases) {
      // Upstream's gradient of NaN is written to where it may not.
      if (!engine::IsChosen(0) && IsMaxPooling(c)) continue;
      SCOPED_TRACE(Describe(c));
      const Results<TypeParam> before = Trial<TypeParam>(c).ForwardBackward();
      Trial<TypeParam> spoilt(c);
      spoilt.bottom(0)->scale_data(std::numeric_limits<TypeParam>::quiet_NaN());
      spoilt.ForwardBackward();
      ExpectSameBits(before, Trial<TypeParam>(c).ForwardBackward());
    }
  }
}

}  // namespace caffe
