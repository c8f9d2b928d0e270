// A prototxt of a net is set up, and computes once if it is small.

#include <set>
#include <string>

#include "fuzz.hpp"

namespace {

// These read or write files, or run code: not what is tried here.
const std::set<std::string> kLeftOut = {"Data",      "HDF5Data",   "HDF5Output",
                                        "ImageData", "WindowData", "MemoryData",
                                        "Python",    "DummyData"};

const int64_t kMostNumbers = 1 << 18;

int64_t CountNumbers(const caffe::Net<float>& net) {
  int64_t count = 0;
  for (const auto& blob : net.blobs()) count += blob->count();
  for (const auto& blob : net.params()) count += blob->count();
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  caffe::NetParameter param;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!fuzz::ParseNet(text, &param)) return 0;
  for (const auto& layer : param.layer()) {
    if (kLeftOut.count(layer.type())) return 0;
  }
  fuzz::Try([&] {
    caffe::Net<float> net(param);
    if (CountNumbers(net) > kMostNumbers) return;
    net.Forward();
    net.Backward();
  });
  return 0;
}
