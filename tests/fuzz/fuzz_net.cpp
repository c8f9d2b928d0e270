// A prototxt of a net is set up. If the net is small, it computes once.

#include <set>
#include <string>

#include "fuzz.hpp"
#include "mutate.hpp"

namespace {

// These read or write files, or run code: not what is tried here.
const std::set<std::string> kLeftOut = {"Data",      "HDF5Data",   "HDF5Output",
                                        "ImageData", "WindowData", "Python"};

// Products of two such blobs take less than a second.
const int64_t kMostNumbers = 1 << 14;

int64_t CountNumbers(const caffe::Net<float>& net) {
  int64_t count = 0;
  for (const auto& blob : net.blobs()) count += blob->count();
  for (const auto& blob : net.params()) count += blob->count();
  return count;
}

std::string Print(const caffe::NetParameter& net) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(net, &text);
  return text;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  return fuzz::Mutate<caffe::NetParameter>(data, size, max_size, seed,
                                           fuzz::ParseNet, Print);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  caffe::NetParameter param;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!fuzz::ParseNet(text, &param)) return 0;
  fuzz::Try([&] {
    caffe::UpgradeNetAsNeeded("the input", &param);
    for (const auto& layer : param.layer()) {
      if (kLeftOut.count(layer.type())) return;
    }
    caffe::Net<float> net(param);
    if (CountNumbers(net) > kMostNumbers) return;
    net.Forward();
    net.Backward();
  });
  return 0;
}
