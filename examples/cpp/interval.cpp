// Prints the class that a Bayesian net sees in a gray ramp, and the 95 %
// credible interval of its probability: interval NET WEIGHTS
#include <algorithm>
#include <caffe/caffe.hpp>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "interval NET WEIGHTS\n"), 2;
  caffe::Caffe::set_random_seed(1);  // the seed of the draws
  caffe::Net<float> net(argv[1], caffe::TEST);
  net.CopyTrainedLayersFrom(argv[2]);
  caffe::Blob<float>& image = *net.input_blobs()[0];
  for (int i = 0; i < image.count(); ++i) {
    image.mutable_cpu_data()[i] = static_cast<float>(i) / image.count();
  }
  const int classes = net.output_blobs()[0]->count();
  std::vector<std::vector<float>> draws(classes, std::vector<float>(100));
  std::vector<float> means(classes);
  for (int draw = 0; draw < 100; ++draw) {
    const float* probabilities = net.Forward()[0]->cpu_data();  // the next draw
    for (int c = 0; c < classes; ++c) {
      means[c] += (draws[c][draw] = probabilities[c]) / 100;
    }
  }
  const int best = std::max_element(means.begin(), means.end()) - means.begin();
  std::sort(draws[best].begin(), draws[best].end());
  std::printf("class %d: %.4f, %.4f to %.4f\n", best, means[best],
              draws[best][2], draws[best][97]);
}
