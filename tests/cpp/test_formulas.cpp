// The formulas of one weight: both tails, the guard at zero, KL against what it
// is defined to be.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "caffe/bayes/formulas.hpp"
#include "caffe/bayes/noise.hpp"

namespace caffe {
namespace bayes {

template <typename Dtype>
class FormulasTest : public ::testing::Test {};
typedef ::testing::Types<float, double> Precisions;
TYPED_TEST_CASE(FormulasTest, Precisions);

// The slope of a function of one double, from points around x.
template <typename Function>
double Slope(Function function, double x, double step = 1e-5) {
  return (function(x + step) - function(x - step)) / (2 * step);
}

TYPED_TEST(FormulasTest, SoftplusInBothTails) {
  typedef TypeParam Dtype;
  EXPECT_EQ(Dtype(1000), Softplus(Dtype(1000)));
  EXPECT_NEAR(1, Softplus(Dtype(-30)) / std::exp(Dtype(-30)), 1e-6);
  EXPECT_NEAR(std::log(2.), Softplus(Dtype(0)), 1e-7);
  // The paper's tables stop at 0.0000454 = ln(1 + exp(-10)).
  EXPECT_NEAR(4.53989e-5, Softplus(Dtype(-10)), 1e-10);
  EXPECT_GT(Softplus(Dtype(-80)), 0);
  EXPECT_EQ(Dtype(0), Softplus(Dtype(-1000)));
}

TYPED_TEST(FormulasTest, SoftplusInverseInverts) {
  for (TypeParam tau : {4.54e-5, 1e-3, 0.1, 0.4, 1., 5., 80.}) {
    const TypeParam delta = SoftplusInverse(tau);
    EXPECT_NEAR(1, Softplus(delta) / tau, 2e-6) << tau;
  }
}

TYPED_TEST(FormulasTest, SlopeOverSoftplusTendsToOne) {
  typedef TypeParam Dtype;
  for (Dtype delta : {-25, -50, -90, -110, -500, -1000}) {
    EXPECT_NEAR(1, LogSoftplusSlope(delta), 1e-6) << delta;
  }
  // On both sides of where the series takes over.
  EXPECT_NEAR(LogSoftplusSlope(Dtype(-19.999)),
              LogSoftplusSlope(Dtype(-20.001)), 1e-6);
  for (Dtype delta : {-15., -3., 0., 2., 30., 1000.}) {
    const double d = delta;
    EXPECT_NEAR(1 / (1 + std::exp(-d)) / Softplus(d), LogSoftplusSlope(delta),
                1e-6);
  }
}

TEST(FormulasTest, SoftplusSlopeIsItsDerivative) {
  for (double delta : {-30., -10., -1., 0., 0.5, 10., 100.}) {
    EXPECT_NEAR(Slope(Softplus<double>, delta), SoftplusSlope(delta), 1e-9);
  }
}

TEST(FormulasTest, LogAbsIsTheLogarithmAwayFromZero) {
  for (double m : {-3., -0.01, -kSmallMean, kSmallMean, 0.5, 20.}) {
    EXPECT_DOUBLE_EQ(std::log(std::fabs(m)), LogAbs(m));
    EXPECT_DOUBLE_EQ(1 / m, LogAbsSlope(m));
  }
}

// The trap of -1/m: no NaN at 0, where Caffe's default bias starts, and no
// force that grows without bound as a weight comes near it.
TYPED_TEST(FormulasTest, LogAbsIsTameAtZero) {
  typedef TypeParam Dtype;
  EXPECT_EQ(0, LogAbsSlope(Dtype(0)));
  EXPECT_TRUE(std::isfinite(LogAbs(Dtype(0))));
  for (double m = -2e-3; m <= 2e-3; m += 1e-5) {
    EXPECT_LE(std::fabs(LogAbsSlope(Dtype(m))), 1.001 / kSmallMean);
    // Odd: it always pushes away from zero, never across.
    EXPECT_EQ(-LogAbsSlope(Dtype(m)), LogAbsSlope(Dtype(-m)));
  }
}

TEST(FormulasTest, LogAbsSlopeIsItsDerivativeAlsoAcrossTheGuard) {
  for (double m : {0., 1e-4, 9.999e-4, 1.0001e-3, -5e-4, -2e-3}) {
    EXPECT_NEAR(Slope(LogAbs<double>, m, 1e-9), LogAbsSlope(m), 1e-3) << m;
  }
  const double below = kSmallMean * (1 - 1e-9), above = kSmallMean * (1 + 1e-9);
  EXPECT_NEAR(LogAbs(below), LogAbs(above), 1e-8);
  EXPECT_NEAR(LogAbsSlope(below), LogAbsSlope(above), 1e-4);
}

TEST(FormulasTest, KLIsZeroWhenPosteriorIsPrior) {
  for (double m : {-2., 0.3, 5.}) {
    for (double tau : {0.01, 0.4, 2.}) {
      EXPECT_NEAR(0, WeightKL(m, tau, m, tau * std::fabs(m)), 1e-12);
      EXPECT_GT(WeightKL(m, tau, m, 1.01 * tau * std::fabs(m)), 1e-6);
      EXPECT_GT(WeightKL(m, tau, 1.01 * m, tau * std::fabs(m)), 1e-6);
    }
  }
}

// KL is the mean over q of ln q(w) - ln p(w).
TEST(FormulasTest, KLIsWhatMonteCarloFinds) {
  const int n = 1 << 20;
  std::vector<double> noise(n);
  FillNormal(MakeNoiseKey(3, "kl", 0), 0, 0, n, noise.data());
  const double cases[][4] = {// m, tau, mu, zeta
                             {0.5, 0.4, 0, 5},
                             {-2, 1, 0, 5},
                             {0.05, 0.1, 0.2, 0.3},
                             {3, 0.01, 2.9, 1}};
  for (const auto& c : cases) {
    const double m = c[0], tau = c[1], mu = c[2], zeta = c[3];
    double sum = 0, sum_sq = 0;
    for (double epsilon : noise) {
      const double w = SampledWeight(m, tau, epsilon);
      const double log_q =
          -std::log(tau * std::fabs(m)) - epsilon * epsilon / 2;
      const double log_p =
          -std::log(zeta) - (w - mu) * (w - mu) / (2 * zeta * zeta);
      sum += log_q - log_p;
      sum_sq += (log_q - log_p) * (log_q - log_p);
    }
    const double mean = sum / n;
    const double standard_error = std::sqrt((sum_sq / n - mean * mean) / n);
    EXPECT_NEAR(mean, WeightKL(m, tau, mu, zeta), 4 * standard_error);
  }
}

TEST(FormulasTest, KLGradientsAreDerivatives) {
  for (double m : {-1.5, -0.02, 4e-4, 0.3, 6.}) {
    for (double delta : {-9., -1., 0.5}) {
      const double mu = 0.1, zeta = 0.7, tau = Softplus(delta);
      const double step = std::fabs(m) * 1e-5;
      const double by_m = MeanKLGradient(m, tau, mu, zeta);
      EXPECT_NEAR(
          Slope([=](double x) { return WeightKL(x, tau, mu, zeta); }, m, step),
          by_m, 1e-5 * (1 + std::fabs(by_m)));
      EXPECT_NEAR(
          Slope([=](double x) { return WeightKL(m, Softplus(x), mu, zeta); },
                delta),
          DeltaKLGradient(delta, tau, m * m / (zeta * zeta), 1), 1e-6);
    }
  }
}

}  // namespace bayes
}  // namespace caffe
