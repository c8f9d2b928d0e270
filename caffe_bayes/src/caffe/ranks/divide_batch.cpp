#include "caffe/ranks/divide_batch.hpp"

#include <sstream>
#include <string>

#include "caffe/error.hpp"
#include "caffe/ranks/ranks.hpp"

namespace caffe {

namespace {

// Where in the source it was noticed is of no interest to the user.
[[noreturn]] void Refuse(const LayerParameter& layer, const std::string& why) {
  throw Error("", 0,
              "layer '" + layer.name() + "': " + why +
                  " (-batch per-rank gives it to each)");
}

template <typename Param>
void Divide(const LayerParameter& layer, const char* field, Param* param) {
  const int batch = param->batch_size(), count = ranks::Count();
  if (batch % count != 0) {
    std::ostringstream why;
    why << field << ".batch_size is " << batch << ", but must be a multiple of "
        << count << ", the number of ranks that share it";
    Refuse(layer, why.str());
  }
  param->set_batch_size(batch / count);
}

}  // namespace

void DivideBatch(NetParameter* net) {
  if (ranks::Count() == 1 || !Ranks::Get()->divides_batch()) return;
  for (LayerParameter& layer : *net->mutable_layer()) {
    const std::string& type = layer.type();
    if (type == "Data") {
      Divide(layer, "data_param", layer.mutable_data_param());
    } else if (type == "ImageData") {
      Divide(layer, "image_data_param", layer.mutable_image_data_param());
    } else if (type == "HDF5Data") {
      Divide(layer, "hdf5_data_param", layer.mutable_hdf5_data_param());
    } else if (layer.bottom_size() == 0 && type != "Parameter") {
      Refuse(layer, "the batch of a layer of type " + type +
                        " cannot be divided among ranks");
    }
  }
}

}  // namespace caffe
