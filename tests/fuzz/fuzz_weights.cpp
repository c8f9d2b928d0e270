// A caffemodel, a file of these bytes, is loaded into a net that then computes.

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "fuzz.hpp"
#include "mutate.hpp"

namespace {

const char kNet[] = R"(
  state { phase: TEST }
  layer { name: "x" type: "Input" top: "x"
          input_param { shape { dim: 2 dim: 1 dim: 6 dim: 6 } } }
  layer { name: "conv" type: "BayesConvolution" bottom: "x" top: "conv"
          convolution_param { num_output: 2 kernel_size: 3 } }
  layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
  layer { name: "fc" type: "InnerProduct" bottom: "norm" top: "fc"
          inner_product_param { num_output: 3 } })";

/// A file in memory.
class File {
 public:
  File(const uint8_t* data, size_t size) : descriptor_(memfd_create("net", 0)) {
    CHECK_EQ(write(descriptor_, data, size), static_cast<ssize_t>(size));
  }
  ~File() { close(descriptor_); }
  std::string name() const {
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  const int descriptor_;
};

bool Parse(const std::string& bytes, caffe::NetParameter* weights) {
  return weights->ParseFromString(bytes);
}
std::string Print(const caffe::NetParameter& weights) {
  return weights.SerializePartialAsString();  // required fields may be missing
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  return fuzz::Mutate<caffe::NetParameter>(data, size, max_size, seed, Parse,
                                           Print);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const File file(data, size);
  fuzz::Try([&] {
    caffe::NetParameter param;
    CHECK(fuzz::ParseNet(kNet, &param));
    caffe::Net<float> net(param);
    // Not of HDF5, whose library is not compiled with sanitizers.
    net.CopyTrainedLayersFromBinaryProto(file.name());
    net.Forward();
  });
  return 0;
}
