// The bytes of a caffemodel are loaded into a net.

#include <string>

#include "fuzz.hpp"

namespace {

const char kNet[] = R"(
  layer { name: "x" type: "Input" top: "x"
          input_param { shape { dim: 2 dim: 1 dim: 6 dim: 6 } } }
  layer { name: "conv" type: "BayesConvolution" bottom: "x" top: "conv"
          convolution_param { num_output: 2 kernel_size: 3 } }
  layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
  layer { name: "fc" type: "InnerProduct" bottom: "norm" top: "fc"
          inner_product_param { num_output: 3 } })";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static caffe::Net<float>* const net = [] {
    caffe::NetParameter param;
    CHECK(fuzz::ParseNet(kNet, &param));
    param.mutable_state()->set_phase(caffe::TEST);
    return new caffe::Net<float>(param);
  }();
  caffe::NetParameter weights;
  if (!weights.ParseFromArray(data, size)) return 0;
  fuzz::Try([&] {
    caffe::UpgradeNetAsNeeded("the input", &weights);
    net->CopyTrainedLayersFrom(weights);
    net->Forward();
  });
  return 0;
}
