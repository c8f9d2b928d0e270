// How fast the engine's matrix product is on one core, its packing included.

#include <chrono>
#include <cstdio>
#include <vector>

#include "caffe/engine/product.hpp"
#include "caffe/engine/team.hpp"

int main() {
  using caffe::engine::Multiply;
  caffe::engine::SetTeamSize(1);
  // LeNet's second and first convolution and inner product, and a large one.
  const int shapes[][3] = {
      {50, 64, 500}, {20, 576, 25}, {500, 64, 800}, {1024, 1024, 1024}};
  for (const auto& shape : shapes) {
    const int rows = shape[0], columns = shape[1], depth = shape[2];
    const std::vector<float> a(rows * depth, 0.5f), b(depth * columns, 0.25f);
    std::vector<float> c(rows * columns);
    const double flops = 2.0 * rows * columns * depth;
    const int products = static_cast<int>(2e9 / flops) + 1;
    double best = 0;
    for (int run = 0; run < 10; ++run) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < products; ++i) {
        Multiply<float>(rows, columns, depth, {a.data(), depth, 1},
                        {b.data(), columns, 1}, c.data(), columns, false, {});
      }
      const std::chrono::duration<double> seconds =
          std::chrono::steady_clock::now() - start;
      best = std::max(best, flops * products / seconds.count());
    }
    std::printf("product: %d x %d x %d at %.0f GFLOP/s on one core\n", rows,
                columns, depth, best / 1e9);
  }
}
