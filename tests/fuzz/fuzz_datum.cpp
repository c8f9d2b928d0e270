// A record of an LMDB is transformed into an image. The first byte of the input
// chooses how, the rest is the record.

#include <string>
#include <vector>

#include "caffe/data_transformer.hpp"
#include "caffe/util/checks.hpp"
#include "fuzz.hpp"
#include "mutate.hpp"

namespace {

caffe::TransformationParameter Transformation(uint8_t choice) {
  caffe::TransformationParameter param;
  if (choice & 1) param.set_crop_size(2);
  if (choice & 2) param.set_mirror(true);
  if (choice & 4) param.set_scale(0.5);
  if (choice & 8) param.add_mean_value(3);
  if (choice & 16) param.set_force_color(true);
  if (choice & 32) param.set_force_gray(true);
  return param;
}

bool Parse(const std::string& bytes, caffe::Datum* datum) {
  return datum->ParseFromString(bytes);
}
std::string Print(const caffe::Datum& datum) {
  return datum.SerializeAsString();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  if (size < 1 || seed % 16 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  return 1 + fuzz::Mutate<caffe::Datum>(data + 1, size - 1, max_size - 1, seed,
                                        Parse, Print);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  caffe::Datum datum;
  if (!datum.ParseFromArray(data + 1, size - 1)) return 0;
  const caffe::Phase phase = data[0] & 64 ? caffe::TRAIN : caffe::TEST;
  caffe::DataTransformer<float> transformer(Transformation(data[0]), phase);
  // For a batch of its own, and for one of other images.
  fuzz::Try([&] {
    caffe::CheckDatum(datum);  // as the Data layer does
    transformer.InitRand();
    caffe::Blob<float> image(transformer.InferBlobShape(datum));
    transformer.Transform(datum, &image);
  });
  fuzz::Try([&] {
    transformer.InitRand();
    caffe::Blob<float> image(std::vector<int>{1, 3, 4, 4});
    transformer.Transform(datum, &image);
  });
  return 0;
}
