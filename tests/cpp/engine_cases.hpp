#ifndef TESTS_CPP_ENGINE_CASES_HPP_
#define TESTS_CPP_ENGINE_CASES_HPP_

// The layers and shapes that the tests of the CPU engine go through.

#include <string>
#include <vector>

#include "caffe/proto/caffe.pb.h"

namespace caffe {

// A layer and what it is fed with.
struct Case {
  std::string layer;
  std::vector<std::vector<int> > bottoms;
  int tops;  // 0: one, in place of the first bottom
};

std::string Describe(const Case& c);
LayerParameter Param(const Case& c);

Case Convolution(const std::string& options, const std::vector<int>& bottom);

std::vector<Case> Convolutions();
std::vector<Case> InnerProducts();
std::vector<Case> Poolings();
bool IsMaxPooling(const Case& c);
std::vector<Case> Relus();
std::vector<Case> Softmaxes();
std::vector<Case> Lrns();
std::vector<Case> Concats();
std::vector<Case> BatchNorms();
/// Scale and Bias.
std::vector<Case> Scales();
std::vector<Case> Eltwises();
/// All activations but ReLU.
std::vector<Case> Activations();
std::vector<Case> Splits();
/// Bayesian layers, some with more weights than one thread takes at a time.
std::vector<Case> BayesLayers();
/// All of the above but the Bayesian layers.
std::vector<Case> All();

}  // namespace caffe

#endif  // TESTS_CPP_ENGINE_CASES_HPP_
