#include "caffe/ranks/divide_batch.hpp"

#include <string>

#include "caffe/common.hpp"
#include "caffe/ranks/ranks.hpp"

namespace caffe {

namespace {

template <typename Param>
void Divide(const std::string& layer, const char* field, Param* param) {
  const int batch = param->batch_size(), count = ranks::Count();
  CHECK_EQ(batch % count, 0)
      << "layer '" << layer << "': " << field << ".batch_size is " << batch
      << ", but must be a multiple of " << count
      << ", the number of ranks that share it (-batch per-rank gives it to "
         "each)";
  param->set_batch_size(batch / count);
}

}  // namespace

void DivideBatch(NetParameter* net) {
  if (ranks::Count() == 1 || !Ranks::Get()->divides_batch()) return;
  for (LayerParameter& layer : *net->mutable_layer()) {
    const std::string& type = layer.type();
    if (type == "Data") {
      Divide(layer.name(), "data_param", layer.mutable_data_param());
    } else if (type == "ImageData") {
      Divide(layer.name(), "image_data_param",
             layer.mutable_image_data_param());
    } else if (type == "HDF5Data") {
      Divide(layer.name(), "hdf5_data_param", layer.mutable_hdf5_data_param());
    } else if (layer.bottom_size() == 0 && type != "Parameter") {
      LOG(FATAL) << "layer '" << layer.name() << "': the batch of a layer of "
                 << "type " << type << " cannot be divided among "
                 << ranks::Count()
                 << " ranks (-batch per-rank gives it to each)";
    }
  }
}

}  // namespace caffe
