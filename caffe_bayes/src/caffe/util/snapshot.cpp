#include "caffe/util/snapshot.hpp"

#ifdef USE_HDF5
#include <hdf5.h>
#include <hdf5_hl.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caffe/bayes/prior_file.hpp"
#include "caffe/net.hpp"
#include "caffe/util/atomic_file.hpp"
#include "caffe/util/file_head.hpp"
#include "caffe/util/hash.hpp"
#include "caffe/util/hdf5.hpp"
#include "caffe/util/hdf5_scope.hpp"
#include "caffe/util/io.hpp"
#include "caffe/util/upgrade_proto.hpp"

namespace caffe {

namespace {

// ---- Reading ----------------------------------------------------------------

bool IsHDF5(const std::string& filename) {
  return filename.size() >= 3 &&
         filename.compare(filename.size() - 3, 3, ".h5") == 0;
}

#ifdef USE_HDF5
// A file of HDF5 in memory: HDF5 would lock the file, which a ScratchFile has
// done.
class HDF5Content {
 public:
  explicit HDF5Content(const std::string& filename)
      : id_(Open(filename)), closer_(id_) {}
  hid_t id() const { return id_; }

 private:
  hid_t Open(const std::string& filename) {
    CheckHead(filename);
    std::ifstream file(filename, std::ios::binary | std::ios::ate);
    const std::streamoff size = std::max<std::streamoff>(file.tellg(), 0);
    content_.reset(new char[size]);
    file.seekg(0);
    file.read(content_.get(), size);
    const hid_t id = H5LTopen_file_image(
        content_.get(), size,
        H5LT_FILE_IMAGE_DONT_COPY | H5LT_FILE_IMAGE_DONT_RELEASE);
    if (!file || id < 0) {
      FailFile(filename, "damaged, not there, or no HDF5 file");
    }
    return id;
  }

  std::unique_ptr<char[]> content_;  // not cleared first, as a string is
  const hid_t id_;
  const HDF5Closer closer_;
};

bool HasNumbers(hid_t group, const std::string& name) {
  const hid_t dataset = H5Dopen2(group, name.c_str(), H5P_DEFAULT);
  const HDF5Closer dataset_closer(dataset);
  const hid_t space = H5Dget_space(dataset);
  const HDF5Closer space_closer(space);
  return H5Sget_simple_extent_type(space) != H5S_NULL;
}

void ReadBlob(hid_t group, const std::string& name, BlobProto* proto) {
  Blob<float> blob;
  const bool kReshape = true;
  hdf5_load_nd_dataset(group, name.c_str(), 0, kMaxBlobAxes, &blob, kReshape);
  FillProto(blob, proto);
}

NetParameter ReadHDF5Weights(const std::string& filename) {
  NetParameter net;
  const HDF5Content content(FilesTogether::ReadableName(filename));
  const hid_t file = content.id();
  const hid_t layers = H5Gopen2(file, "data", H5P_DEFAULT);
  const HDF5Closer layers_closer(layers);
  for (int i = 0; i < hdf5_get_num_links(layers); ++i) {
    LayerParameter* layer = net.add_layer();
    layer->set_name(hdf5_get_name_by_idx(layers, i));
    const hid_t blobs = H5Gopen2(layers, layer->name().c_str(), H5P_DEFAULT);
    const HDF5Closer blobs_closer(blobs);
    for (int j = 0; j < hdf5_get_num_links(blobs); ++j) {
      const std::string name = hdf5_get_name_by_idx(blobs, j);
      if (HasNumbers(blobs, name)) ReadBlob(blobs, name, layer->add_blobs());
    }
  }
  return net;
}

uint64_t LoadHash(hid_t file, const std::string& name) {
  return std::strtoull(hdf5_load_string(file, name).c_str(), nullptr, 10);
}

SolverState ReadHDF5State(const std::string& filename) {
  SolverState state;
  const HDF5Content content(filename);
  const hid_t file = content.id();
  state.set_iter(hdf5_load_int(file, "iter"));
  state.set_current_step(hdf5_load_int(file, "current_step"));
  if (H5LTfind_dataset(file, "learned_net")) {
    state.set_learned_net(hdf5_load_string(file, "learned_net"));
  }
  if (H5LTfind_dataset(file, "hash")) {
    state.set_hash(LoadHash(file, "hash"));
    state.set_training(LoadHash(file, "training"));
  }
  const hid_t history = H5Gopen2(file, "history", H5P_DEFAULT);
  const HDF5Closer history_closer(history);
  for (int i = 0; i < hdf5_get_num_links(history); ++i) {
    ReadBlob(history, std::to_string(i), state.add_history());
  }
  return state;
}
#endif

NetParameter ReadWeights(const std::string& filename) {
#ifdef USE_HDF5
  if (IsHDF5(filename)) return ReadHDF5Weights(filename);
#endif
  NetParameter net;
  if (!ReadProtoFromBinaryFile(FilesTogether::ReadableName(filename), &net)) {
    FailFile(filename, "damaged, or no caffemodel");
  }
  if (NetNeedsUpgrade(net)) UpgradeNetAsNeeded(filename, &net);
  return net;
}

SolverState ReadState(const std::string& filename) {
#ifdef USE_HDF5
  if (IsHDF5(filename)) return ReadHDF5State(filename);
#endif
  SolverState state;
  if (!ReadProtoFromBinaryFile(filename, &state)) {
    FailFile(filename, "damaged, or no solver state");
  }
  // Stock Caffe writes it last.
  if (!state.has_current_step()) FailFile(filename, "not complete");
  return state;
}

// ---- Hashing ----------------------------------------------------------------

// Calls `use` with the numbers of a blob, as floats.
template <typename Use>
void WithNumbers(const BlobProto& blob, const Use& use) {
  if (blob.data_size() > 0) {
    use(blob.data().data(), blob.data_size());
  } else {
    const std::vector<float> numbers(blob.double_data().begin(),
                                     blob.double_data().end());
    use(numbers.data(), numbers.size());
  }
}

void AddBlob(const BlobProto& blob, Hash* hash) {
  for (const int64_t size : blob.shape().dim()) hash->Add(size);
  WithNumbers(blob, [&](const float* numbers, size_t count) {
    hash->Add(count);
    hash->Add(numbers, count * sizeof(float));
  });
}

bool HasNumbers(const BlobProto& blob) {
  return blob.data_size() + blob.double_data_size() > 0;
}

// The checksum of an HDF5 file of weights; 0 if it is none, or has none.
uint64_t HDF5Checksum(const std::string& model) {
  return IsHDF5(model) ? ChecksumOf(FilesTogether::ReadableName(model)) : 0;
}

// `weights` gives those of the state. It is not called for an HDF5 file with a
// checksum: to read the numbers again would take longer than to write them. A
// caffemodel of the other format has another checksum as soon as it carries its
// net.
template <typename Weights>
uint64_t SnapshotHash(const SolverState& state, const Weights& weights) {
  Hash hash;
  hash.Add(state.iter());
  hash.Add(state.current_step());
  for (const BlobProto& blob : state.history()) AddBlob(blob, &hash);
  if (const uint64_t checksum = HDF5Checksum(state.learned_net())) {
    hash.Add(checksum);
    return hash.Value();
  }
  const NetParameter& net = weights();  // which may be a temporary
  for (const LayerParameter& layer : net.layer()) {
    hash.Add(layer.name());
    for (const BlobProto& blob : layer.blobs()) {
      if (HasNumbers(blob)) AddBlob(blob, &hash);  // not noise without numbers
    }
  }
  return hash.Value();
}

// ---- Checking ---------------------------------------------------------------

std::string Shape(const BlobProto& blob) {
  if (!blob.has_shape()) {  // a file of old
    return std::to_string(blob.num()) + "x" + std::to_string(blob.channels()) +
           "x" + std::to_string(blob.height()) + "x" +
           std::to_string(blob.width());
  }
  std::string text;
  for (const int64_t size : blob.shape().dim()) {
    text += (text.empty() ? "" : "x") + std::to_string(size);
  }
  return text;
}

void CheckNumbers(const BlobProto& blob, const std::string& filename,
                  const std::string& what) {
  WithNumbers(blob, [&](const float* numbers, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(numbers[i]))
        FailFile(filename, what + " are not finite");
    }
    if (!blob.has_shape()) return;
    size_t expected = 1;
    for (const int64_t size : blob.shape().dim()) expected *= size;
    if (count != expected) {
      FailFile(filename, what + ": " + std::to_string(count) +
                             " numbers, but the shape is " + Shape(blob));
    }
  });
}

// The solver has a history of each learned blob, or two. So weights that lack a
// layer are noticed without a hash, too.
void CheckLayers(const SolverState& state, const NetParameter& weights,
                 const std::string& state_file) {
  std::map<std::string, int> allowed;
  for (const LayerParameter& layer : weights.layer()) {
    for (const BlobProto& blob : layer.blobs()) {
      if (HasNumbers(blob)) allowed[Shape(blob)] += 2;
    }
  }
  for (const BlobProto& blob : state.history()) {
    if (--allowed[Shape(blob)] < 0) {
      FailFile(state.learned_net(), "it lacks layers that " + state_file +
                                        " has, such as one with a blob of " +
                                        Shape(blob));
    }
  }
}

// ---- Training ---------------------------------------------------------------

void Clear(const std::string& field, google::protobuf::Message* message) {
  const google::protobuf::FieldDescriptor* found =
      message->GetDescriptor()->FindFieldByName(field);
  CHECK(found) << message->GetTypeName() << " has no field " << field;
  message->GetReflection()->ClearField(message, found);
}

void ForgetPlaces(LayerParameter* layer) {
  layer->clear_include();
  layer->clear_exclude();
  if (layer->has_data_param()) {
    layer->mutable_data_param()->clear_source();
    layer->mutable_data_param()->clear_prefetch();
  }
  if (layer->has_image_data_param()) {
    layer->mutable_image_data_param()->clear_source();
    layer->mutable_image_data_param()->clear_root_folder();
  }
  if (layer->has_window_data_param()) {
    layer->mutable_window_data_param()->clear_source();
    layer->mutable_window_data_param()->clear_root_folder();
  }
  if (layer->has_hdf5_data_param()) {
    layer->mutable_hdf5_data_param()->clear_source();
  }
  if (layer->has_hdf5_output_param()) {
    layer->mutable_hdf5_output_param()->clear_file_name();
  }
  if (layer->has_transform_param()) {
    layer->mutable_transform_param()->clear_mean_file();
  }
  if (layer->has_bayes_param()) {
    layer->mutable_bayes_param()->clear_prior_from();
  }
}

NetParameter TrainNet(const SolverParameter& solver) {
  NetParameter net;
  if (solver.has_train_net_param()) {
    net = solver.train_net_param();
  } else if (solver.has_net_param()) {
    net = solver.net_param();
  } else {
    ReadNetParamsFromTextFileOrDie(
        solver.has_train_net() ? solver.train_net() : solver.net(), &net);
  }
  NetState state;
  state.set_phase(TRAIN);
  state.MergeFrom(net.state());
  state.MergeFrom(solver.train_state());
  *net.mutable_state() = state;
  NetParameter filtered;
  Net<float>::FilterNet(net, &filtered);
  return filtered;
}

}  // namespace

std::vector<std::string> MayDiffer() {
  return {// The net, which is hashed as it is trained, and how it is tested.
          "net", "net_param", "train_net", "train_net_param", "train_state",
          "test_net", "test_net_param", "test_state", "test_iter",
          "test_interval", "test_compute_loss", "test_initialization",
          "test_draws",
          // How long to train, what to tell, and what to write.
          "max_iter", "display", "average_loss", "debug_info", "snapshot",
          "snapshot_prefix", "snapshot_diff", "snapshot_format",
          "snapshot_after_train",
          // Where to compute, and the weights to start from.
          "solver_mode", "device_id", "layer_wise_reduce", "weights"};
}

uint64_t TrainingHash(const SolverParameter& solver) {
  Hash hash;
  SolverParameter same = solver;
  for (const std::string& field : MayDiffer()) Clear(field, &same);
  hash.Add(same.SerializeAsString());
  NetParameter net = TrainNet(solver);
  for (LayerParameter& layer : *net.mutable_layer()) {
    // A prior is part of what is minimised, wherever its file is.
    if (layer.bayes_param().has_prior_from()) {
      const LayerParameter prior = bayes::ReadPriorLayer(layer);
      for (const BlobProto& blob : prior.blobs()) {
        hash.Add(blob.SerializeAsString());
      }
    }
    ForgetPlaces(&layer);
    hash.Add(layer.SerializeAsString());
  }
  return hash.Value();
}

void AddHash(SolverState* state) {
  state->set_hash(
      SnapshotHash(*state, [&] { return ReadWeights(state->learned_net()); }));
}

SolverState CheckSnapshot(const std::string& state_file) {
#ifdef USE_HDF5
  const HDF5Silence silence;
#endif
  const SolverState state =
      InFile(state_file, [&] { return ReadState(state_file); });
  if (state.iter() < 0 || state.current_step() < 0) {
    FailFile(state_file, "iteration " + std::to_string(state.iter()) +
                             ", step " + std::to_string(state.current_step()) +
                             ": neither may be < 0");
  }
  for (int i = 0; i < state.history_size(); ++i) {
    CheckNumbers(state.history(i), state_file,
                 "the numbers of history " + std::to_string(i));
  }
  if (!state.has_learned_net()) return state;
  const std::string& model = state.learned_net();
  const NetParameter weights =
      InFile(model, [&] { return ReadWeights(model); });
  for (const LayerParameter& layer : weights.layer()) {
    for (const BlobProto& blob : layer.blobs()) {
      if (!HasNumbers(blob)) continue;
      CheckNumbers(blob, model, "the weights of layer '" + layer.name() + "'");
    }
  }
  CheckLayers(state, weights, state_file);
  const auto read = [&]() -> const NetParameter& { return weights; };
  if (state.has_hash() && state.hash() != SnapshotHash(state, read)) {
    FailFile(state_file, "does not belong to the weights in " + model +
                             ", or one of the two was changed");
  }
  return state;
}

}  // namespace caffe
