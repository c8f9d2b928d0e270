// The engine's matrix products and convolutions beside OpenBLAS and oneDNN: for
// one instruction set, by one or more threads.
//
//   bench_product THREADS...
//
// Verifies the results against plain loops, then times all in turns, and
// prints one JSON object a line. products.py runs it and makes tables.
// BAYESCAFFE_ISA, ONEDNN_MAX_CPU_ISA and OPENBLAS_CORETYPE choose the
// instruction set; PRODUCT_SECONDS (0.1) is how long one subject is timed.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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

// Compares some hundred numbers of each result, spread over all of it, with
// expected(index), which computes one by a plain loop in double precision.
void Verify(const std::string& what, size_t size,
            const std::function<double(size_t)>& expected,
            std::vector<Subject>* subjects) {
  std::vector<size_t> places = {size - 1};
  for (size_t i = 0; i < size; i += size / 500 + 1) places.push_back(i);
  std::vector<double> numbers;
  double largest = 0;
  for (size_t place : places) {
    numbers.push_back(expected(place));
    largest = std::max(largest, std::fabs(numbers.back()));
  }
  for (Subject& subject : *subjects) {
    subject.run();
    if (!subject.result) continue;
    for (size_t i = 0; i < places.size(); ++i) {
      const float found = (*subject.result)[places[i]];
      // Winograd's method, of oneDNN too, rounds more.
      if (!(std::fabs(found - numbers[i]) <= 1e-4 * largest)) {
        std::fprintf(stderr, "%s by %s: number %zu is %g and not %g\n",
                     what.c_str(), subject.name.c_str(), places[i], found,
                     numbers[i]);
        std::exit(EXIT_FAILURE);
      }
    }
  }
}

// One thread's own time, which does not count what others do to the machine, or
// the time on the clock for several.
double Now(int threads) {
  timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

double Seconds(const std::function<void()>& run, int times, int threads) {
  const double start = Now(threads);
  for (int i = 0; i < times; ++i) run();
  return Now(threads) - start;
}

// Waits until the threads of the one before no longer poll for work, which
// OpenBLAS's do for 2^26 ticks of the clock, about 30 ms. Then runs long enough
// that the system has moved the woken threads to cores of their own.
void Settle(const std::function<void()>& run) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double end = Now(2) + 0.03;
  while (Now(2) < end) run();
}

// In turns, so that what else the machine does hits all alike.
void Time(int threads, std::vector<Subject>* subjects) {
  const char* said = std::getenv("PRODUCT_SECONDS");
  const int kTurns = 20;
  const double turn = (said ? std::atof(said) : 0.1) / kTurns;
  std::vector<int> times;
  for (Subject& subject : *subjects) {
    const double once = std::min(Seconds(subject.run, 1, threads),
                                 Seconds(subject.run, 1, threads));
    times.push_back(std::max(1, static_cast<int>(turn / once)));
  }
  for (int i = 0; i < kTurns; ++i) {
    for (size_t j = 0; j < subjects->size(); ++j) {
      Subject& subject = (*subjects)[j];
      if (threads > 1) Settle(subject.run);
      subject.run();
      subject.seconds.push_back(Seconds(subject.run, times[j], threads) /
                                times[j]);
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

double PlainProduct(const Product& p, const Numbers& a, const Numbers& b,
                    size_t index) {
  const size_t i = index / p.n, j = index % p.n;
  double sum = 0;
  for (int l = 0; l < p.k; ++l) {
    sum += static_cast<double>(a[p.turn_a ? l * p.m + i : i * p.k + l]) *
           b[p.turn_b ? j * p.k + l : l * p.n + j];
  }
  return sum;
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
  Verify(
      what, size, [&](size_t i) { return PlainProduct(p, a, b, i); },
      &subjects);
  Time(threads, &subjects);
  Print(p.kind, what, 2.0 * p.m * p.n * p.k, threads, subjects);
}

// ---- Convolutions -----------------------------------------------------------

enum Direction { kForward, kInputGradient, kWeightGradient };

// The number `index` of y, of the gradient by x or of that by w, for stride 1:
//   y[image, output, i] = bias[output] +
//       sum over channel, k of x[image, channel, i + k - pad] w[output,
//       channel, k]
struct PlainConvolution {
  const ConvolutionShape& s;
  const Numbers &x, &w, &bias, &y;

  double operator()(Direction direction, size_t index) const {
    if (direction == kForward) return Forward(index);
    return direction == kInputGradient ? ByInput(index) : ByWeight(index);
  }

 private:
  double Forward(size_t index) const {
    const int column = index % s.output(1),
              row = index / s.output(1) % s.output(0);
    const size_t map = index / s.output(1) / s.output(0);
    const size_t image = map / s.outputs, output = map % s.outputs;
    double sum = bias[output];
    for (int c = 0; c < s.channels; ++c) {
      for (int h = 0; h < s.kernel[0]; ++h) {
        for (int v = 0; v < s.kernel[1]; ++v) {
          sum += X(image, c, row + h - s.pad[0], column + v - s.pad[1]) *
                 W(output, c, h, v);
        }
      }
    }
    return sum;
  }

  double ByInput(size_t index) const {
    const int column = index % s.input[1],
              row = index / s.input[1] % s.input[0];
    const size_t map = index / s.input[1] / s.input[0];
    const size_t image = map / s.channels, channel = map % s.channels;
    double sum = 0;
    for (int output = 0; output < s.outputs; ++output) {
      for (int h = 0; h < s.kernel[0]; ++h) {
        for (int v = 0; v < s.kernel[1]; ++v) {
          sum += Y(image, output, row - h + s.pad[0], column - v + s.pad[1]) *
                 W(output, channel, h, v);
        }
      }
    }
    return sum;
  }

  double ByWeight(size_t index) const {
    const int v = index % s.kernel[1], h = index / s.kernel[1] % s.kernel[0];
    const size_t map = index / s.kernel[1] / s.kernel[0];
    const size_t output = map / s.channels, channel = map % s.channels;
    double sum = 0;
    for (int image = 0; image < s.images; ++image) {
      for (int row = 0; row < s.output(0); ++row) {
        for (int column = 0; column < s.output(1); ++column) {
          sum += X(image, channel, row + h - s.pad[0], column + v - s.pad[1]) *
                 Y(image, output, row, column);
        }
      }
    }
    return sum;
  }

  // 0 outside of the image.
  static double At(const Numbers& numbers, size_t map, int height, int width,
                   int row, int column) {
    const bool inside =
        row >= 0 && row < height && column >= 0 && column < width;
    return inside ? numbers[(map * height + row) * width + column] : 0;
  }
  double X(size_t image, size_t channel, int row, int column) const {
    return At(x, image * s.channels + channel, s.input[0], s.input[1], row,
              column);
  }
  double Y(size_t image, size_t output, int row, int column) const {
    return At(y, image * s.outputs + output, s.output(0), s.output(1), row,
              column);
  }
  double W(size_t output, size_t channel, int row, int column) const {
    return At(w, output * s.channels + channel, s.kernel[0], s.kernel[1], row,
              column);
  }
};

struct NamedConvolution {
  const char *kind, *what;
  int images, channels, outputs, size, kernel, pad;
};

void Bench(const NamedConvolution& n, Direction direction, int threads) {
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
  const int written = direction == kForward         ? 2
                      : direction == kInputGradient ? 0
                                                    : 1;
  std::vector<Subject> subjects = {
      {"ours",
       [&] {
         float* to = ours[written].data();
         if (direction == kForward) {
           ConvolutionForward(s, x.data(), w.data(), bias.data(), to);
         } else if (direction == kInputGradient) {
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
  const PlainConvolution plain = {s, x, w, bias, y};
  Verify(
      what, ours[written].size(), [&](size_t i) { return plain(direction, i); },
      &subjects);
  Time(threads, &subjects);
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
    // A short product by several threads takes as long as it takes the system
    // to bring them to cores of their own: up to 8 ms, whoever's threads.
    if (threads == 1) {
      for (const Product& product : products) Bench(product, threads);
    }
    for (const NamedConvolution& convolution : convolutions) {
      for (Direction direction : {kForward, kInputGradient, kWeightGradient}) {
        // No net needs the gradient by its first input.
        if (direction == kInputGradient && convolution.channels < 4) continue;
        Bench(convolution, direction, threads);
      }
    }
  }
}
