// The bytes of a record of an LMDB are transformed into an image.

#include <string>

#include "caffe/data_transformer.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  caffe::TransformationParameter param;
  if (data[0] & 1) param.set_crop_size(2);
  if (data[0] & 2) param.set_mirror(true);
  if (data[0] & 4) param.set_scale(0.5);
  if (data[0] & 8) param.add_mean_value(3);
  if (data[0] & 16) param.set_force_color(true);
  if (data[0] & 32) param.set_force_gray(true);
  caffe::Datum datum;
  if (!datum.ParseFromArray(data + 1, size - 1)) return 0;
  fuzz::Try([&] {
    caffe::DataTransformer<float> transformer(param, caffe::TEST);
    transformer.InitRand();
    const std::vector<int> shape = transformer.InferBlobShape(datum);
    caffe::Blob<float> image(shape);
    transformer.Transform(datum, &image);
  });
  return 0;
}
