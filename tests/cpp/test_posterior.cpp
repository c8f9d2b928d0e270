// The posterior of one parameter blob.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/bayes/posterior.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "expect_error.hpp"

namespace caffe {
namespace bayes {

template <typename TypeParam>
class PosteriorTest : public MultiDeviceTest<TypeParam> {
 protected:
  typedef typename TypeParam::Dtype Dtype;
  typedef shared_ptr<Blob<Dtype> > BlobPtr;

  static BlobPtr MakeBlob(const vector<Dtype>& values) {
    BlobPtr blob(new Blob<Dtype>(vector<int>(1, values.size())));
    std::copy(values.begin(), values.end(), blob->mutable_cpu_data());
    return blob;
  }

  PosteriorTest() { Make({0.5, -2, 0.03, 1.5, -0.7}, 0.4); }

  void Make(const vector<Dtype>& means, Dtype tau, Dtype tau_min = 1e-4) {
    m_ = MakeBlob(means);
    epsilon_ = MakeBlob(vector<Dtype>(means.size()));
    w_ = MakeBlob(vector<Dtype>(means.size()));
    MakeWithDelta(MakeBlob({SoftplusInverse(tau)}), tau_min);
  }

  void MakeWithDelta(const BlobPtr& delta, Dtype tau_min = 1e-4) {
    delta_ = delta;
    posterior_.reset(new Posterior<Dtype>(m_, delta_, epsilon_, tau_min));
    posterior_->SetPrior(0.1, 2);
  }

  // The gradients of all m and of all delta after one Backward.
  vector<Dtype> Gradients(Dtype kl_scale, Dtype w_gradient, Dtype before = 0) {
    std::fill_n(m_->mutable_cpu_diff(), m_->count(), before);
    std::fill_n(w_->mutable_cpu_diff(), w_->count(), w_gradient);
    std::fill_n(delta_->mutable_cpu_diff(), delta_->count(), before);
    posterior_->Backward(w_.get(), kl_scale, true, true);
    vector<Dtype> found(m_->cpu_diff(), m_->cpu_diff() + m_->count());
    found.insert(found.end(), delta_->cpu_diff(),
                 delta_->cpu_diff() + delta_->count());
    return found;
  }

  // Each gradient of scale * KL against the change of KL itself.
  void ExpectGradientsOfKL(Dtype scale, double tolerance) {
    posterior_->Mean(w_.get());
    const vector<Dtype> found = Gradients(scale, 0);
    for (int i = 0; i < found.size(); ++i) {
      Blob<Dtype>* blob = i < m_->count() ? m_.get() : delta_.get();
      const int at = i < m_->count() ? i : i - m_->count();
      const Dtype kept = blob->cpu_data()[at], step = std::fabs(kept) * 1e-2;
      const auto kl_at = [&](Dtype x) {
        blob->mutable_cpu_data()[at] = x;
        return posterior_->KL();
      };
      const double above = kl_at(kept + step), below = kl_at(kept - step);
      blob->mutable_cpu_data()[at] = kept;
      const double expected = scale * (above - below) / (2 * step);
      EXPECT_NEAR(expected, found[i], tolerance * (1 + std::fabs(expected)))
          << "parameter " << i;
    }
  }

  BlobPtr m_, delta_, epsilon_, w_;
  shared_ptr<Posterior<Dtype> > posterior_;
  const NoiseKey key_ = MakeNoiseKey(1, "layer", 0);
};

TYPED_TEST_CASE(PosteriorTest, TestDtypesAndDevices);

// w ~ N(m, (tau m)^2), each weight by itself.
TYPED_TEST(PosteriorTest, SampleHasTheMomentsOfThePosterior) {
  const int draws = 20000, n = this->m_->count();
  vector<double> sum(n), sum_sq(n);
  for (int draw = 0; draw < draws; ++draw) {
    this->posterior_->Sample(this->key_, draw, this->w_.get());
    for (int i = 0; i < n; ++i) {
      const double w = this->w_->cpu_data()[i];
      sum[i] += w;
      sum_sq[i] += w * w;
    }
  }
  for (int i = 0; i < n; ++i) {
    const double m = this->m_->cpu_data()[i], std = 0.4 * std::fabs(m);
    const double mean = sum[i] / draws;
    EXPECT_NEAR(m, mean, 4 * std / std::sqrt(draws));
    EXPECT_NEAR(std, std::sqrt(sum_sq[i] / draws - mean * mean),
                4 * std / std::sqrt(2. * draws));
  }
}

TYPED_TEST(PosteriorTest, SampleIsTheNamedDraw) {
  typedef typename TypeParam::Dtype Dtype;
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  vector<Dtype> noise(5);
  FillNormal(this->key_, 3, 0, 5, noise.data());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(noise[i], this->epsilon_->cpu_data()[i]);
    EXPECT_NEAR(this->m_->cpu_data()[i] * (1 + 0.4 * noise[i]),
                this->w_->cpu_data()[i], 1e-6);
  }
}

TYPED_TEST(PosteriorTest, MeanHasNoNoise) {
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  this->posterior_->Mean(this->w_.get());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(0, this->epsilon_->cpu_data()[i]);
    EXPECT_EQ(this->m_->cpu_data()[i], this->w_->cpu_data()[i]);
  }
}

// The paper's equations for the derivatives by m and delta.
TYPED_TEST(PosteriorTest, GradientOfTheLoss) {
  typedef typename TypeParam::Dtype Dtype;
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  const vector<Dtype> found = this->Gradients(0, 0.25);
  double by_delta = 0;
  for (int i = 0; i < 5; ++i) {
    const double epsilon = this->epsilon_->cpu_data()[i];
    EXPECT_NEAR(0.25 * (1 + 0.4 * epsilon), found[i], 1e-6);
    by_delta += 0.25 * this->m_->cpu_data()[i] * epsilon;
  }
  by_delta *= 1 - std::exp(-0.4);  // exp(delta) / (1 + exp(delta))
  EXPECT_NEAR(by_delta, found[5], 1e-6);
}

TYPED_TEST(PosteriorTest, GradientOfKL) {
  this->ExpectGradientsOfKL(0.7, 2e-3);
}

TYPED_TEST(PosteriorTest, GradientOfKLWithAPriorForEachWeight) {
  this->posterior_->SetPrior(this->MakeBlob({0.4, -1, 0, 2, -0.5}),
                             this->MakeBlob({0.2, 3, 1, 0.5, 2}));
  this->ExpectGradientsOfKL(0.7, 2e-3);
}

TYPED_TEST(PosteriorTest, GradientOfKLWithAPriorAndATauForEachWeight) {
  const auto means = this->MakeBlob({0.4, -1, 0, 2, -0.5, 0.3});
  const auto stds = this->MakeBlob({0.2, 3, 1, 0.5, 2, 0.7});
  // Each weight, the rows and the columns of a matrix.
  for (const vector<int>& shape :
       {vector<int>({2, 3}), vector<int>({2, 1}), vector<int>({1, 3})}) {
    this->Make({0.5, -2, 0.03, 1.5, -0.7, 0.2}, 0.4);
    for (const auto& blob : {this->m_, this->epsilon_, this->w_, means, stds}) {
      blob->Reshape({2, 3});
    }
    const auto delta = this->MakeBlob({-1, 0.5, 1, -2, 0.1, -0.4});
    delta->Reshape(shape);
    this->MakeWithDelta(delta);
    this->posterior_->SetPrior(means, stds);
    this->ExpectGradientsOfKL(0.7, 2e-3);
  }
}

TYPED_TEST(PosteriorTest, BackwardAccumulates) {
  typedef typename TypeParam::Dtype Dtype;
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  const vector<Dtype> once = this->Gradients(0.7, 0.25);
  const vector<Dtype> on_top = this->Gradients(0.7, 0.25, 10);
  for (int i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(once[i] + 10, on_top[i], 1e-5);
  }
}

TYPED_TEST(PosteriorTest, OnlyWantedGradientsAreTouched) {
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  std::fill_n(this->w_->mutable_cpu_diff(), 5, 1);
  std::fill_n(this->m_->mutable_cpu_diff(), 5, 8);
  this->delta_->mutable_cpu_diff()[0] = 9;
  this->posterior_->Backward(this->w_.get(), 1, false, false);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(8, this->m_->cpu_diff()[i]);
  EXPECT_EQ(9, this->delta_->cpu_diff()[0]);
}

// A blob that no cache holds is drawn and learned by loops of their own.
TYPED_TEST(PosteriorTest, ManyWeightsAreDrawnAsFewAre) {
  typedef typename TypeParam::Dtype Dtype;
  const int kCount = (1 << 20) + 1003;
  vector<Dtype> means(kCount);
  for (int i = 0; i < kCount; ++i) means[i] = Dtype(i % 101 - 50) / 64;
  this->Make(means, 0.3);
  this->posterior_->Sample(this->key_, 6, this->w_.get());
  vector<Dtype> noise(kCount);
  FillNormal(this->key_, 6, 0, kCount, noise.data());
  const Dtype tau = this->posterior_->Taus()[0];
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(noise[i], this->epsilon_->cpu_data()[i]) << i;
    ASSERT_NEAR(SampledWeight(means[i], tau, noise[i]), this->w_->cpu_data()[i],
                1e-6)
        << i;
  }
}

TYPED_TEST(PosteriorTest, StripsGiveTheGradientsOfTheWhole) {
  typedef typename TypeParam::Dtype Dtype;
  if (Caffe::mode() == Caffe::GPU) return;
  const int kCount = 20000;
  vector<Dtype> means(kCount), by_w(kCount);
  for (int i = 0; i < kCount; ++i) {
    means[i] = Dtype(i % 101 - 50) / 64;
    by_w[i] = Dtype(i * 37 % 113) / 50;
  }
  this->Make(means, 0.3);
  this->posterior_->Sample(this->key_, 6, this->w_.get());
  for (Dtype kl_scale : {0, 1}) {
    std::copy(by_w.begin(), by_w.end(), this->w_->mutable_cpu_diff());
    const auto start = [&] {
      std::fill_n(this->m_->mutable_cpu_diff(), kCount, Dtype(2));
      this->delta_->mutable_cpu_diff()[0] = 2;
    };
    start();
    this->posterior_->Backward(this->w_.get(), kl_scale, true, true);
    const vector<Dtype> expected(this->m_->cpu_diff(),
                                 this->m_->cpu_diff() + kCount);
    const Dtype expected_delta = this->delta_->cpu_diff()[0];
    for (int strip : {1003, 8192, 30000}) {
      start();
      this->posterior_->BackwardInStrips(
          strip,
          [&](int first, int n, Dtype* w_diff) {
            std::copy_n(by_w.begin() + first, n, w_diff);
          },
          kl_scale, true, true);
      for (int i = 0; i < kCount; ++i) {
        ASSERT_EQ(expected[i], this->m_->cpu_diff()[i]) << i;
      }
      EXPECT_NEAR(expected_delta, this->delta_->cpu_diff()[0],
                  1e-6 * std::fabs(expected_delta));
    }
  }
}

TYPED_TEST(PosteriorTest, KLIsZeroWhenPosteriorIsPrior) {
  typedef typename TypeParam::Dtype Dtype;
  vector<Dtype> means(this->m_->cpu_data(), this->m_->cpu_data() + 5), stds;
  for (Dtype m : means) stds.push_back(0.4 * std::fabs(m));
  this->posterior_->SetPrior(this->MakeBlob(means), this->MakeBlob(stds));
  EXPECT_NEAR(0, this->posterior_->KL(), 1e-5);
  this->m_->mutable_cpu_data()[2] *= 1.5;
  EXPECT_GT(this->posterior_->KL(), 0.1);
}

TYPED_TEST(PosteriorTest, OnePriorForAllIsTheSamePriorForEach) {
  typedef typename TypeParam::Dtype Dtype;
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  const double kl = this->posterior_->KL();
  const vector<Dtype> gradients = this->Gradients(0.7, 0.25);
  this->posterior_->SetPrior(this->MakeBlob(vector<Dtype>(5, 0.1)),
                             this->MakeBlob(vector<Dtype>(5, 2)));
  EXPECT_EQ(kl, this->posterior_->KL());
  const vector<Dtype> found = this->Gradients(0.7, 0.25);
  for (int i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(gradients[i], found[i], 1e-6 * (1 + std::fabs(gradients[i])));
  }
}

// What the stock layer adds up is used once.
TYPED_TEST(PosteriorTest, BackwardClearsWhatItUsed) {
  this->posterior_->Sample(this->key_, 3, this->w_.get());
  this->Gradients(0.7, 0.25);
  EXPECT_EQ(0, this->w_->asum_diff());
  std::fill_n(this->w_->mutable_cpu_diff(), 5, 1);
  this->posterior_->BackwardVariance(this->w_.get(), 1, true, true);
  EXPECT_EQ(0, this->w_->asum_diff());
}

// Each of those that go over the means adds the same KL, times a factor.
TYPED_TEST(PosteriorTest, KLCanBeAddedInPassing) {
  typedef typename TypeParam::Dtype Dtype;
  const double kl = this->posterior_->KL();
  EXPECT_GT(kl, 1);
  const auto sum = this->MakeBlob({10});
  const KLTerm<Dtype> term = {0.5, sum.get()};
  this->posterior_->AddKL(term);
  this->posterior_->Sample(this->key_, 3, this->w_.get(), term);
  this->posterior_->Mean(this->w_.get(), term);
  this->posterior_->Variance(this->w_.get(), term);
  EXPECT_NEAR(10 + 4 * 0.5 * kl, sum->cpu_data()[0], 1e-5);
}

// A bias of 0 is where Caffe starts: finite, and KL leaves it where it is.
TYPED_TEST(PosteriorTest, MeansAtZero) {
  typedef typename TypeParam::Dtype Dtype;
  this->Make({0, 0, 0}, 0.4);
  this->posterior_->SetPrior(0, 10);
  this->posterior_->Sample(this->key_, 0, this->w_.get());
  EXPECT_TRUE(std::isfinite(this->posterior_->KL()));
  const vector<Dtype> found = this->Gradients(1, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(0, found[i]);
  EXPECT_TRUE(std::isfinite(found[3]));
}

// Gradient descent on KL alone, from means that sit around zero: nothing
// explodes.
TYPED_TEST(PosteriorTest, NoMeanIsThrownFarByKL) {
  typedef typename TypeParam::Dtype Dtype;
  this->Make({0, 1e-8, -1e-8, 1e-4, -1e-3, 1e-3}, 0.4);
  const Dtype rate = 1e-4;
  for (int step = 0; step < 1000; ++step) {
    this->posterior_->Mean(this->w_.get());
    const vector<Dtype> gradient = this->Gradients(1e-2, 0);
    for (int i = 0; i < 6; ++i) {
      Dtype* m = this->m_->mutable_cpu_data() + i;
      EXPECT_LE(std::fabs(rate * gradient[i]), 1.01e-6 / kSmallMean);
      *m -= rate * gradient[i];
      ASSERT_TRUE(std::isfinite(*m));
    }
  }
  for (int i = 0; i < 6; ++i) EXPECT_LT(std::fabs(this->m_->cpu_data()[i]), 1);
}

TYPED_TEST(PosteriorTest, TauStopsAtItsFloorAndCanRiseAgain) {
  this->Make({0.5, -2}, 0.4, 0.01);
  this->delta_->mutable_cpu_data()[0] = -50;
  EXPECT_NEAR(0.01, this->posterior_->Taus()[0], 1e-7);
  this->posterior_->Sample(this->key_, 0, this->w_.get());
  EXPECT_NEAR(SoftplusInverse(0.01), this->delta_->cpu_data()[0], 1e-5);
  // KL wants more than 0.01: the gradient must point up, not be zero.
  EXPECT_LT(this->Gradients(1, 0)[2], -1);
  this->delta_->mutable_cpu_data()[0] = -1;
  EXPECT_NEAR(Softplus(-1.), this->posterior_->Taus()[0], 1e-6);
}

// A training that went wrong shows it.
TYPED_TEST(PosteriorTest, TauOfNaNIsNaN) {
  this->delta_->mutable_cpu_data()[0] = NAN;
  EXPECT_TRUE(std::isnan(this->posterior_->Taus()[0]));
  this->posterior_->Sample(this->key_, 0, this->w_.get());
  EXPECT_TRUE(std::isnan(this->w_->cpu_data()[0]));
}

TYPED_TEST(PosteriorTest, TauFarBelowAnyFloorIsFinite) {
  typedef typename TypeParam::Dtype Dtype;
  this->Make({0.5, -2}, 0.4, 1e-30);
  this->delta_->mutable_cpu_data()[0] = -1000;
  this->posterior_->Sample(this->key_, 0, this->w_.get());
  for (Dtype gradient : this->Gradients(1, 1)) {
    EXPECT_TRUE(std::isfinite(gradient));
  }
}

// Two weights with taus of their own, against a standard normal prior. By hand:
// KL = -ln tau - ln|m| + (tau^2 m^2 + m^2 - 1) / 2, which is
//   m = 2, tau = 0.5:  -ln 0.5 - ln 2 + (1 + 4 - 1) / 2          = 2
//   m = -1, tau = e:   -1 - 0 + (e^2 + 1 - 1) / 2 = e^2 / 2 - 1  = 2.6945280
TYPED_TEST(PosteriorTest, KLOfTwoWeightsWithTausOfTheirOwn) {
  typedef typename TypeParam::Dtype Dtype;
  this->Make({2, -1}, 0.4);
  const double e = std::exp(1.);
  this->MakeWithDelta(
      this->MakeBlob({Dtype(SoftplusInverse(0.5)), Dtype(SoftplusInverse(e))}));
  this->posterior_->SetPrior(0, 1);
  EXPECT_NEAR(4.6945280, this->posterior_->KL(), 1e-5);
  // By m: -1/m + tau^2 m + m. By tau: -1/tau + tau m^2, times
  // d tau / d delta = 1 - exp(-tau).
  this->posterior_->Mean(this->w_.get());
  const vector<Dtype> found = this->Gradients(1, 0);
  EXPECT_NEAR(-0.5 + 0.5 + 2, found[0], 1e-5);
  EXPECT_NEAR(1 - e * e - 1, found[1], 1e-5);
  EXPECT_NEAR((-2 + 2) * (1 - std::exp(-0.5)), found[2], 1e-5);
  EXPECT_NEAR((-1 / e + e) * (1 - std::exp(-e)), found[3], 1e-5);
}

TYPED_TEST(PosteriorTest, EachTauStopsAtItsFloor) {
  typedef typename TypeParam::Dtype Dtype;
  this->Make({0.5, -2, 3}, 0.4);
  this->MakeWithDelta(this->MakeBlob({-50, 1, -50}), 0.01);
  const vector<Dtype> taus = this->posterior_->Taus();
  this->posterior_->Sample(this->key_, 0, this->w_.get());
  for (int i = 0; i < 3; ++i) {
    const double delta = i == 1 ? 1 : SoftplusInverse(0.01);
    EXPECT_NEAR(Softplus(delta), taus[i], 1e-6);
    EXPECT_NEAR(delta, this->delta_->cpu_data()[i], 1e-5);
  }
}

TYPED_TEST(PosteriorTest, DeltaThatDoesNotFitIsRefused) {
  typedef typename TypeParam::Dtype Dtype;
  const auto with_delta = [&](const vector<int>& m, const vector<int>& delta) {
    typename TestFixture::BlobPtr blobs[3];
    for (auto& blob : blobs) blob.reset(new Blob<Dtype>(m));
    blobs[1].reset(new Blob<Dtype>(delta));
    Posterior<Dtype>(blobs[0], blobs[1], blobs[2], 1e-4);
  };
  with_delta({2, 3, 4}, {1});
  with_delta({2, 3, 4}, {1, 3, 1});
  with_delta({2, 3, 4}, {2, 3, 1});
  with_delta({2, 3, 4}, {2, 3, 4});
  EXPECT_ERROR(with_delta({2, 3, 4}, {2, 1, 4}),
               "delta has shape 2 1 4 .8., but m has 2 3 4");
  EXPECT_ERROR(with_delta({2, 3, 4}, {3}), "delta has shape 3 ");
  EXPECT_ERROR(with_delta({2, 3, 4}, {1, 2, 1}), "delta has shape 1 2 1 ");
}

TYPED_TEST(PosteriorTest, PriorThatMakesNoSenseIsRefused) {
  EXPECT_ERROR(this->posterior_->SetPrior(0, 0), "must be positive");
  EXPECT_ERROR(this->posterior_->SetPrior(this->MakeBlob({1, 2}),
                                          this->MakeBlob({1, 2})),
               "must have the shape of the weights");
  EXPECT_ERROR(this->posterior_->SetPrior(this->MakeBlob({1, 2, 3, 4, 5}),
                                          this->MakeBlob({1, 2, -3, 4, 5})),
               "prior 2 must be positive");
}

}  // namespace bayes
}  // namespace caffe
