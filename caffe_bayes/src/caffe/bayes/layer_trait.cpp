#include "caffe/bayes/layer_trait.hpp"

#include <map>

#include "caffe/layers/bayes_layer.hpp"

namespace caffe {
namespace bayes {

namespace {

#define AXIS(axis) \
  [](const LayerParameter& param [[maybe_unused]]) -> int { return axis; }

int NoAxis(const LayerParameter&) { return kNoAxis; }

int BatchNormAxis(const LayerParameter& param) {
  const BatchNormParameter& options = param.batch_norm_param();
  const bool takes_batch_statistics =
      options.has_use_global_stats() && !options.use_global_stats();
  return takes_batch_statistics ? 0 : kNoAxis;
}

// Both forms of the layers that bayes_layer.hpp lists, and stock layers that
// have one form only.
std::map<std::string, LayerTrait> MakeTraits() {
  std::map<std::string, LayerTrait> traits = {
#define BOTH_FORMS(name, axis, independent_outputs, output_axis) \
  {#name, {AXIS(axis), true, independent_outputs}},              \
      {Bayes##name##Layer<float>::kType,                         \
       {AXIS(axis), false, independent_outputs, AXIS(output_axis)}},
      BAYES_LAYERS(BOTH_FORMS)
#undef BOTH_FORMS
          {"BatchNorm", {BatchNormAxis}},
      {"Bias", {AXIS(AxisUnlessScalar(param, param.bias_param()))}},
      {"Flatten", {AXIS(param.flatten_param().axis())}},
      {"Softmax", {AXIS(param.softmax_param().axis())}},
  };
  // Concat and Slice change the number of items where they work along the first
  // axis, which is seen in their tops.
  for (const char* type :
       {"AbsVal", "BNLL", "Concat", "Dropout", "ELU", "Eltwise", "Exp", "LRN",
        "Log", "PReLU", "Pooling", "Power", "ReLU", "Sigmoid", "Slice", "Split",
        "Swish", "TanH", "Threshold"}) {
    traits.emplace(type, LayerTrait{NoAxis});
  }
  return traits;
}

}  // namespace

const LayerTrait* FindTrait(const std::string& type) {
  static const std::map<std::string, LayerTrait> traits = MakeTraits();
  const auto found = traits.find(type);
  return found == traits.end() ? nullptr : &found->second;
}

}  // namespace bayes
}  // namespace caffe
