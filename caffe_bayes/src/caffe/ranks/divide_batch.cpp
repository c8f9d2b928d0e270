#include "caffe/ranks/divide_batch.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>

#include "caffe/error.hpp"
#include "caffe/ranks/ranks.hpp"

namespace caffe {

namespace {

const char kPerRank[] = " (-batch per-rank gives it to each)";

// The sources of data of a test net that several ranks may have: those that
// leave out the batches of the others, and those of which each batch is as good
// as another.
const char* const kShared[] = {"Data",  "ImageData", "HDF5Data",
                               "Input", "DummyData", "Parameter"};

// Where in the source it was noticed is of no interest to the user.
[[noreturn]] void Refuse(const LayerParameter& layer, const std::string& why) {
  throw Error("", 0, "layer '" + layer.name() + "': " + why);
}

template <typename Param>
void Divide(const LayerParameter& layer, const char* field, Param* param) {
  const int batch = param->batch_size(), count = ranks::Count();
  if (batch % count != 0) {
    std::ostringstream why;
    why << field << ".batch_size is " << batch << ", but must be a multiple of "
        << count << ", the number of ranks that share it" << kPerRank;
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
                        " cannot be divided among ranks" + kPerRank);
    }
  }
}

void CheckSharedTest(const NetParameter& net) {
  for (const LayerParameter& layer : net.layer()) {
    const std::string& type = layer.type();
    const bool goes_on =
        layer.bottom_size() == 0 &&
        !std::count(std::begin(kShared), std::end(kShared), type);
    if (goes_on) {
      Refuse(layer,
             "ranks share out the batches of a test, which a layer of "
             "type " +
                 type + " cannot do");
    }
  }
}

}  // namespace caffe
