// The engine's matrix products and convolutions beside OpenBLAS and oneDNN: for
// one instruction set, by one or more threads.
//
//   bench_product THREADS...
//
// Verifies every result against a plain loop, then times all in turns, and
// prints one JSON object a line. products.py runs it and makes tables.
// BAYESCAFFE_ISA, ONEDNN_MAX_CPU_ISA and OPENBLAS_CORETYPE choose the
// instruction set; PRODUCT_SECONDS (0.1) is how long one subject is timed.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/util/math_functions.hpp"
#ifdef WITH_ONEDNN
#include "onednn.hpp"
#endif

extern "C" void openblas_set_num_threads(int) __attribute__((weak));
extern "C" void omp_set_num_threads(int) __attribute__((weak));

namespace {

using caffe::engine::ConvolutionShape;

typedef std::vector<float> Numbers;

Numbers Random(size_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Numbers numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// One way to compute something.
struct Subject {
  std::string name;
  std::function<void()> run;
  Numbers* result = nullptr;  // null: not to be verified
  std::vector<double> seconds = {};
};

void Verify(const std::string& what, const Numbers& expected,
            std::vector<Subject>* subjects) {
  float largest = 0;
  for (float x : expected) largest = std::max(largest, std::fabs(x));
  for (Subject& subject : *subjects) {
    subject.run();
    if (!subject.result) continue;
    for (size_t i = 0; i < expected.size(); ++i) {
      const float found = (*subject.result)[i];
      // Winograd's method, of oneDNN too, rounds more.
      if (!(std::fabs(found - expected[i]) <= 1e-4f * largest)) {
        std::fprintf(stderr, "%s by %s: number %zu is %g and not %g\n",
                     what.c_str(), subject.name.c_str(), i, found, expected[i]);
        std::exit(EXIT_FAILURE);
      }
    }
  }
}

double Seconds(const std::function<void()>& run, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) run();
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  return seconds.count();
}

// In turns, so that what else the machine does hits all alike.
void Time(std::vector<Subject>* subjects) {
  const char* said = std::getenv("PRODUCT_SECONDS");
  const int kTurns = 20;
  const double turn = (said ? std::atof(said) : 0.1) / kTurns;
  std::vector<int> times;
  for (Subject& subject : *subjects) {
    const double once =
        std::min(Seconds(subject.run, 1), Seconds(subject.run, 1));
    times.push_back(std::max(1, static_cast<int>(turn / once)));
  }
  for (int i = 0; i < kTurns; ++i) {
    for (size_t j = 0; j < subjects->size(); ++j) {
      Subject& subject = (*subjects)[j];
      // The threads of the one before stop polling for work.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      subject.run();
      subject.seconds.push_back(Seconds(subject.run, times[j]) / times[j]);
    }
  }
}

void Print(const std::string& kind, const std::string& what, double flops,
           int threads, const std::vector<Subject>& subjects) {
  std::printf(
      "{\"kind\": \"%s\", \"what\": \"%s\", \"flops\": %.0f, "
      "\"threads\": %d, \"seconds\": {",
      kind.c_str(), what.c_str(), flops, threads);
  for (size_t i = 0; i < subjects.size(); ++i) {
    std::printf("%s\"%s\": [", i ? ", " : "", subjects[i].name.c_str());
    for (size_t j = 0; j < subjects[i].seconds.size(); ++j) {
      std::printf("%s%.4g", j ? ", " : "", subjects[i].seconds[j]);
    }
    std::printf("]");
  }
  std::printf("}}\n");
  std::fflush(stdout);
}

// ---- Products ---------------------------------------------------------------

// c (m x n) = a (m x k) b (k x n), stored row by row, a and b turned or not. A
// gradient of weights is added to what is there.
struct Product {
  const char *kind, *what;
  int m, n, k;
  bool turn_a, turn_b, add;
};

Numbers PlainProduct(const Product& p, const Numbers& a, const Numbers& b) {
  Numbers c(static_cast<size_t>(p.m) * p.n);
  std::vector<double> row(p.n);
  for (int i = 0; i < p.m; ++i) {
    std::fill(row.begin(), row.end(), 0);
    for (int l = 0; l < p.k; ++l) {
      const double x = a[p.turn_a ? l * p.m + i : i * p.k + l];
      for (int j = 0; j < p.n; ++j) {
        row[j] += x * b[p.turn_b ? j * p.k + l : l * p.n + j];
      }
    }
    std::copy(row.begin(), row.end(), c.begin() + static_cast<size_t>(i) * p.n);
  }
  return c;
}

void Multiply(const Product& p, const Numbers& a, const Numbers& b, float* c) {
  using caffe::engine::Matrix;
  const Matrix<float> left = {a.data(), p.turn_a ? 1 : p.k, p.turn_a ? p.m : 1};
  const Matrix<float> right = {b.data(), p.turn_b ? 1 : p.n,
                               p.turn_b ? p.k : 1};
  caffe::engine::Start<float> start;
  start.add = p.add;
  if (!p.turn_a && p.turn_b && !p.add) {
    // As InnerProduct's forward pass does it: c' = b' a'.
    caffe::engine::Multiply<float>(
        p.n, p.m, p.k, {right.data, right.column, right.row},
        {left.data, left.column, left.row}, c, p.n, true, start);
  } else {
    caffe::engine::Multiply<float>(p.m, p.n, p.k, left, right, c, p.n, false,
                                   start);
  }
}

void Bench(const Product& p, int threads) {
  const Numbers a = Random(static_cast<size_t>(p.m) * p.k, 1);
  const Numbers b = Random(static_cast<size_t>(p.k) * p.n, 2);
  const int lda = p.turn_a ? p.m : p.k, ldb = p.turn_b ? p.k : p.n;
  const float beta = p.add;
  const size_t size = static_cast<size_t>(p.m) * p.n;
  Numbers ours(size), blas(size), dnn(size);
  std::vector<Subject> subjects = {
      {"ours", [&] { Multiply(p, a, b, ours.data()); }, &ours},
      {"OpenBLAS",
       [&] {
         cblas_sgemm(CblasRowMajor, p.turn_a ? CblasTrans : CblasNoTrans,
                     p.turn_b ? CblasTrans : CblasNoTrans, p.m, p.n, p.k, 1,
                     a.data(), lda, b.data(), ldb, beta, blas.data(), p.n);
       },
       &blas},
#ifdef WITH_ONEDNN
      {"oneDNN",
       [&] {
         onednn::Sgemm(p.turn_a, p.turn_b, p.m, p.n, p.k, a.data(), lda,
                       b.data(), ldb, beta, dnn.data(), p.n);
       },
       &dnn},
#endif
  };
  const std::string what = std::string(p.what) + " (" + std::to_string(p.m) +
                           " × " + std::to_string(p.n) + " × " +
                           std::to_string(p.k) + ")";
  Verify(what, PlainProduct(p, a, b), &subjects);
  Time(&subjects);
  Print(p.kind, what, 2.0 * p.m * p.n * p.k, threads, subjects);
}

// ---- Convolutions -----------------------------------------------------------

Numbers PlainConvolution(const ConvolutionShape& s, int direction,
                         const Numbers& x, const Numbers& w,
                         const Numbers& bias, const Numbers& y) {
  const int area = s.output(0) * s.output(1);
  std::vector<double> sum(direction == 0   ? y.size()
                          : direction == 1 ? x.size()
                                           : w.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const int pixel = i % area, output = i / area % s.outputs;
    const size_t image = i / area / s.outputs;
    if (direction == 0) sum[i] = bias[output];
    for (int c = 0; c < s.channels; ++c) {
      for (int h = 0; h < s.kernel[0]; ++h) {
        for (int v = 0; v < s.kernel[1]; ++v) {
          const int row = pixel / s.output(1) + h - s.pad[0];
          const int column = pixel % s.output(1) + v - s.pad[1];
          if (row < 0 || row >= s.input[0] || column < 0 ||
              column >= s.input[1]) {
            continue;
          }
          const size_t from =
              ((image * s.channels + c) * s.input[0] + row) * s.input[1] +
              column;
          const size_t weight =
              ((output * s.channels + c) * s.kernel[0] + h) * s.kernel[1] + v;
          if (direction == 0) {
            sum[i] += static_cast<double>(x[from]) * w[weight];
          } else if (direction == 1) {
            sum[from] += static_cast<double>(y[i]) * w[weight];
          } else {
            sum[weight] += static_cast<double>(y[i]) * x[from];
          }
        }
      }
    }
  }
  return Numbers(sum.begin(), sum.end());
}

struct NamedConvolution {
  const char *kind, *what;
  int images, channels, outputs, size, kernel, pad;
};

void Bench(const NamedConvolution& n, int direction, int threads) {
  const ConvolutionShape s = {n.images, n.channels,       n.outputs,
                              1,        {n.size, n.size}, {n.kernel, n.kernel},
                              {1, 1},   {n.pad, n.pad},   {1, 1}};
  const size_t outputs =
      static_cast<size_t>(n.images) * n.outputs * s.output(0) * s.output(1);
  const size_t depth = static_cast<size_t>(n.channels) * n.kernel * n.kernel;
  const Numbers x =
      Random(static_cast<size_t>(n.images) * n.channels * n.size * n.size, 1);
  const Numbers w = Random(n.outputs * depth, 2), bias = Random(n.outputs, 3);
  const Numbers y = Random(outputs, 4);
  // Of each, the blob that is written is the result.
  Numbers ours[3] = {x, w, y}, dnn[3] = {x, w, y};
  const int written = direction == 0 ? 2 : direction == 1 ? 0 : 1;
  std::vector<Subject> subjects = {
      {"ours",
       [&] {
         float* to = ours[written].data();
         if (direction == 0) {
           ConvolutionForward(s, x.data(), w.data(), bias.data(), to);
         } else if (direction == 1) {
           ConvolutionInputGradient(s, y.data(), w.data(), to);
         } else {
           ConvolutionWeightGradient(s, x.data(), y.data(), to);
         }
       },
       &ours[written]}};
  // Ours adds.
  std::fill(ours[1].begin(), ours[1].end(), 0.0f);
#ifdef WITH_ONEDNN
  Numbers its_bias = bias;
  const auto made = onednn::MakeConvolution(
      s, static_cast<onednn::Direction>(direction), dnn[0].data(),
      dnn[1].data(), its_bias.data(), dnn[2].data());
  subjects.push_back({"oneDNN", made.run, &dnn[written]});
  subjects.push_back({"oneDNN, own layout", made.run_in_own_layout});
#endif
  const char* const directions[] = {"forward", "by x", "by w"};
  const std::string what =
      std::string(n.what) + " " + directions[direction] + " (" +
      std::to_string(n.images) + " of " + std::to_string(n.channels) + " → " +
      std::to_string(n.outputs) + ", " + std::to_string(s.output(0)) + "²)";
  Verify(what, PlainConvolution(s, direction, x, w, bias, y), &subjects);
  Time(&subjects);
  Print(n.kind, what, 2.0 * outputs * depth, threads, subjects);
}

}  // namespace

int main(int argc, char** argv) {
  // Of one image, as upstream's Convolution and other libraries without one
  // compute it: weights times the matrix of im2col.
  const char *lenet = "LeNet, products", *wide = "wide inner products",
             *vgg = "3 × 3 kernels, products";
  const bool yes = true, no = false;
  const Product products[] = {
      {lenet, "conv1 forward", 20, 576, 25, no, no, no},
      {lenet, "conv1 by w", 20, 25, 576, no, yes, yes},
      {lenet, "conv2 forward", 50, 64, 500, no, no, no},
      {lenet, "conv2 by w", 50, 500, 64, no, yes, yes},
      {lenet, "conv2 by x", 500, 64, 50, yes, no, no},
      {lenet, "fc1 forward", 64, 500, 800, no, yes, no},
      {lenet, "fc1 by w", 500, 800, 64, yes, no, yes},
      {lenet, "fc1 by x", 64, 800, 500, no, no, no},
      {lenet, "fc2 forward", 64, 10, 500, no, yes, no},
      {lenet, "fc2 by w", 10, 500, 64, yes, no, yes},
      {lenet, "fc2 by x", 64, 500, 10, no, no, no},
      {vgg, "64 → 64 forward", 64, 1024, 576, no, no, no},
      {vgg, "64 → 64 by w", 64, 576, 1024, no, yes, yes},
      {vgg, "64 → 64 by x", 576, 1024, 64, yes, no, no},
      {vgg, "256 → 256 forward", 256, 64, 2304, no, no, no},
      {wide, "forward", 64, 2048, 2048, no, yes, no},
      {wide, "by w", 2048, 2048, 64, yes, no, yes},
      {wide, "by x", 64, 2048, 2048, no, no, no},
      {wide, "forward, 256 inputs", 256, 2048, 2048, no, yes, no},
      {wide, "square", 1024, 1024, 1024, no, no, no},
  };
  const char *lenet_conv = "LeNet, convolutions",
             *vgg_conv = "3 × 3 kernels, convolutions";
  const NamedConvolution convolutions[] = {
      {lenet_conv, "conv1", 64, 1, 20, 28, 5, 0},
      {lenet_conv, "conv2", 64, 20, 50, 12, 5, 0},
      {vgg_conv, "quick 2", 64, 32, 32, 16, 3, 1},
      {vgg_conv, "vgg 1", 32, 3, 64, 32, 3, 1},
      {vgg_conv, "vgg 2", 32, 64, 64, 32, 3, 1},
      {vgg_conv, "vgg 4", 32, 128, 128, 16, 3, 1},
      {vgg_conv, "vgg 6", 32, 256, 256, 8, 3, 1},
  };
  for (int i = 1; i < argc; ++i) {
    const int threads = std::atoi(argv[i]);
    if (threads < 1) {
      std::fprintf(stderr, "usage: bench_product THREADS...\n");
      return EXIT_FAILURE;
    }
    caffe::engine::SetTeamSize(threads);
    if (openblas_set_num_threads) openblas_set_num_threads(threads);
    if (omp_set_num_threads) omp_set_num_threads(threads);
    for (const Product& product : products) Bench(product, threads);
    for (const NamedConvolution& convolution : convolutions) {
      for (int direction = 0; direction < 3; ++direction) {
        // Nothing needs the gradient by the image.
        if (direction == 1 && convolution.channels < 4) continue;
        Bench(convolution, direction, threads);
      }
    }
  }
}
