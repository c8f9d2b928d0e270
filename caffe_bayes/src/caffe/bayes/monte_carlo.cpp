#include "caffe/bayes/monte_carlo.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "caffe/bayes/kept_stream.hpp"
#include "caffe/bayes/layer_trait.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/util/checks.hpp"

namespace caffe {
namespace bayes {

namespace {

// What the collected images may take, and those that a source gives at once;
// and what the blobs of a copy of the net should not exceed, so that they stay
// in the cache from one layer to the next.
const size_t kCollectedBytes = 64 << 20;
const size_t kCachedBytes = 4 << 20;
// With fewer images than this at once, the vectors of a product are not full.
// So many may exceed the cache, but all copies together not kPortionBytes,
// unless the net itself takes so many.
const int kLeastPortion = 32;
const size_t kPortionBytes = 64 << 20;
// A GPU needs many images at once, and this is little of its memory.
const size_t kGpuBytes = 256 << 20;

// Leaves no filler in the parameters of a layer.
void ClearFillers(google::protobuf::Message* message) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (!field->message_type()) continue;
    if (field->message_type() == FillerParameter::descriptor()) {
      reflection->ClearField(message, field);
    } else if (!field->is_repeated()) {
      ClearFillers(reflection->MutableMessage(message, field));
    }
  }
}

template <typename Dtype>
Stochastic* AsStochastic(Layer<Dtype>* layer) {
  return dynamic_cast<Stochastic*>(layer);
}

// How many of a layer's blobs are no noise.
template <typename Dtype>
int NumParams(Layer<Dtype>* layer) {
  const Stochastic* stochastic = AsStochastic(layer);
  return layer->blobs().size() -
         (stochastic ? stochastic->num_noise_blobs() : 0);
}

template <typename Dtype, typename Function>
void ForEachStochastic(const Net<Dtype>& net, Function function) {
  for (const auto& layer : net.layers()) {
    if (Stochastic* stochastic = AsStochastic(layer.get())) {
      function(stochastic);
    }
  }
}

template <typename Dtype>
int ItemSize(const Blob<Dtype>& blob) {
  return blob.num_axes() > 0 ? blob.count(1) : 1;
}

// The first of these layers with a top that is NaN or infinite somewhere; empty
// if there is none.
template <typename Dtype>
std::string FirstNotFinite(const Net<Dtype>& net,
                           const std::vector<int>& layers) {
  for (int i : layers) {
    for (const Blob<Dtype>* top : net.top_vecs()[i]) {
      if (top->count() > 0 && !AllFinite(top->cpu_data(), top->count())) {
        return net.layer_names()[i];
      }
    }
  }
  return "";
}

}  // namespace

template <typename Dtype>
MonteCarlo<Dtype>::MonteCarlo(Net<Dtype>* net, const std::string& output,
                              size_t draw_memory)
    : net_(net),
      output_(output),
      draw_memory_(draw_memory),
      mode_(Caffe::mode()),
      shapes_(Shapes()),
      kept_draws_(draw_memory) {
  FindLayers();
  MakeWorkers();
}

template <typename Dtype>
std::vector<std::vector<int> > MonteCarlo<Dtype>::Shapes() const {
  std::vector<std::vector<int> > shapes;
  for (const auto& blob : net_->blobs()) shapes.push_back(blob->shape());
  return shapes;
}

template <typename Dtype>
bool MonteCarlo<Dtype>::IsCurrent() const {
  for (int i : random_part_) {
    if (!FindTrait(net_->layers()[i]->type())) return false;
  }
  return mode_ == Caffe::mode() && shapes_ == Shapes() &&
         workers_.size() == WorkersWanted();
}

template <typename Dtype>
void MonteCarlo<Dtype>::CheckItems(const std::string& name) const {
  std::string wrong;
  if (!net_->has_blob(name)) {
    wrong = "the net has no blob '" + name + "'";
  } else if (net_->blob_by_name(name)->num_axes() == 0) {
    wrong = "the blob '" + name + "' is one number, not one for each image";
  } else if (net_->blob_by_name(name)->count() == 0) {
    wrong = "the blob '" + name + "' is empty: its shape is " +
            net_->blob_by_name(name)->shape_string();
  } else if (net_->blob_by_name(name)->shape(0) != batch_) {
    wrong = "the blob '" + name + "' has " +
            std::to_string(net_->blob_by_name(name)->shape(0)) +
            " items, not one for each of the " + std::to_string(batch_) +
            " images of a batch";
  }
  if (!wrong.empty()) throw std::invalid_argument(wrong);
}

template <typename Dtype>
void MonteCarlo<Dtype>::FindLayers() {
  const auto& layers = net_->layers();
  int last = 0;
  std::vector<bool> is_random(layers.size());
  for (int i = 0; i < layers.size(); ++i) {
    const Stochastic* stochastic = AsStochastic(layers[i].get());
    const LayerParameter& param = layers[i]->layer_param();
    is_random[i] = stochastic && stochastic->IsRandom();
    for (const auto& bottom : param.bottom()) {
      if (random_blobs_.count(bottom)) is_random[i] = true;
    }
    if (is_random[i]) {
      random_blobs_.insert(param.top().begin(), param.top().end());
    } else {
      fixed_part_.push_back(i);
    }
    if (std::count(param.top().begin(), param.top().end(), output_)) last = i;
  }
  // From the output backwards: before a layer, the blobs that it reads are
  // wanted, and those that it writes no longer are.
  std::set<std::string> wanted = {output_};
  for (int i = last; i >= 0; --i) {
    const LayerParameter& param = layers[i]->layer_param();
    bool matters = false;
    for (const auto& top : param.top()) matters |= wanted.count(top) > 0;
    if (!matters || !is_random[i]) continue;
    random_part_.insert(random_part_.begin(), i);
    for (const auto& top : param.top()) wanted.erase(top);
    wanted.insert(param.bottom().begin(), param.bottom().end());
  }
  for (const std::string& name : wanted) {
    if (entries_.empty() && net_->has_blob(name) &&
        net_->blob_by_name(name)->num_axes() > 0) {
      batch_ = net_->blob_by_name(name)->shape(0);
    }
    CheckItems(name);
    entries_.push_back({name, ItemSize(*net_->blob_by_name(name)), {}});
  }
  CheckItems(output_);
}

template <typename Dtype>
NetParameter MonteCarlo<Dtype>::WorkerParam() const {
  NetParameter net_param;
  net_param.set_name(net_->name());
  net_param.mutable_state()->set_phase(net_->phase());
  for (const Entry& entry : entries_) {
    LayerParameter* input = net_param.add_layer();
    input->set_name("input " + entry.blob);
    input->set_type("Input");
    input->add_top(entry.blob);
    BlobShape* shape = input->mutable_input_param()->add_shape();
    for (int dim : net_->blob_by_name(entry.blob)->shape()) shape->add_dim(dim);
  }
  for (int i : random_part_) {
    LayerParameter* param = net_param.add_layer();
    *param = net_->layers()[i]->layer_param();
    param->clear_blobs();
    param->clear_include();
    param->clear_exclude();
    // The blobs will be the net's own.
    ClearFillers(param);
    // KL takes longer than a draw.
    const Stochastic* stochastic = AsStochastic(net_->layers()[i].get());
    const int kl_top = stochastic ? stochastic->kl_top() : -1;
    const bool wants_kl = kl_top >= 0 && param->top(kl_top) == output_;
    if (kl_top >= 0 && !wants_kl) {
      param->mutable_top()->DeleteSubrange(kl_top, 1);
      param->clear_loss_weight();
    }
    // Only KL needs the prior, whose file need not be here any more.
    if (param->has_bayes_param() && !wants_kl) {
      param->mutable_bayes_param()->clear_prior_from();
      param->mutable_bayes_param()->clear_prior_scale();
    }
  }
  return net_param;
}

template <typename Dtype>
std::string MonteCarlo<Dtype>::MixingLayer() const {
  for (int i : random_part_) {
    const Layer<Dtype>& layer = *net_->layers()[i];
    const LayerTrait* trait = FindTrait(layer.type());
    bool mixes = !trait || !trait->TreatsItemsAlone(
                               layer.layer_param(),
                               net_->bottom_vecs()[i][0]->num_axes());
    for (const Blob<Dtype>* top : net_->top_vecs()[i]) {
      if (top->num_axes() == 0) continue;  // KL
      mixes |= top->shape(0) != batch_;
    }
    if (mixes) return layer.layer_param().name();
  }
  return "";
}

// Python layers run in Python's own thread, and a GPU needs one worker.
template <typename Dtype>
int MonteCarlo<Dtype>::WorkersWanted() const {
  if (random_part_.empty()) return 0;
  for (int i : random_part_) {
    if (net_->layers()[i]->type() == std::string("Python")) return 1;
  }
  return Caffe::mode() == Caffe::CPU ? engine::TeamSize() : 1;
}

template <typename Dtype>
void MonteCarlo<Dtype>::MakeWorkers() {
  if (random_part_.empty()) return;
  const NetParameter param = WorkerParam();
  const KeptStream stream;
  for (int w = 0; w < WorkersWanted(); ++w) {
    workers_.emplace_back(new Net<Dtype>(param));
  }
  ShareParameters();
  // In TRAIN, dropout has a mask for each place in the batch.
  whole_batches_ = net_->phase() == TRAIN || !MixingLayer().empty();
  portion_ = whole_batches_ ? batch_ : Portion();
  if (draw_memory_ > 0 && mode_ == Caffe::CPU) {
    ForEachStochastic(*workers_[0], [&](Stochastic* layer) {
      draw_bytes_ += layer->draw_bytes();
    });
    own_places_.resize(workers_.size());
  }
}

template <typename Dtype>
void MonteCarlo<Dtype>::ShareParameters() {
  for (const auto& worker : workers_) {
    for (int i = 0; i < random_part_.size(); ++i) {
      Layer<Dtype>* original = net_->layers()[random_part_[i]].get();
      Layer<Dtype>* copy = worker->layers()[entries_.size() + i].get();
      Stochastic* stochastic = AsStochastic(copy);
      for (int j = 0; j < NumParams(original); ++j) {
        // Allocated, and on the CPU, before several threads ask for it.
        if (Caffe::mode() == Caffe::CPU) original->blobs()[j]->cpu_data();
        if (original->type() == std::string("BatchNorm")) {
          // It writes to them where it takes the statistics of a batch.
          copy->blobs()[j]->CopyFrom(*original->blobs()[j]);
        } else {
          copy->blobs()[j]->ShareData(*original->blobs()[j]);
        }
      }
      if (stochastic) stochastic->DrawLike(*AsStochastic(original));
    }
  }
}

template <typename Dtype>
void MonteCarlo<Dtype>::UpdateKeptDraws() {
  if (draw_bytes_ == 0) return;
  std::vector<typename KeptDraws<Dtype>::Params> params;
  for (int i : random_part_) {
    Layer<Dtype>* layer = net_->layers()[i].get();
    const Stochastic* stochastic = AsStochastic(layer);
    if (!stochastic || stochastic->draw_bytes() == 0) continue;
    for (int j = 0; j < NumParams(layer); ++j) {
      const Blob<Dtype>& blob = *layer->blobs()[j];
      params.push_back({blob.cpu_data(), blob.count()});
    }
  }
  kept_draws_.Update(params, draw_bytes_);
}

template <typename Dtype>
int MonteCarlo<Dtype>::Portion() const {
  size_t bytes = 0;
  for (const auto& blob : workers_[0]->blobs()) {
    bytes += ItemSize(*blob) * sizeof(Dtype);
  }
  if (Caffe::mode() == Caffe::GPU) {
    return std::max<int>(batch_, kGpuBytes / bytes);
  }
  const int roomy =
      std::max<int>(batch_, kPortionBytes / workers_.size() / bytes);
  return std::max<int>(std::min(kLeastPortion, roomy), kCachedBytes / bytes);
}

// Fills the entries with what `count` images, from number `first` on, give.
template <typename Dtype>
void MonteCarlo<Dtype>::Collect(int first, int count, const Inputs& inputs,
                                const Kept& kept) {
  for (Entry& entry : entries_) {
    const size_t size = static_cast<size_t>(count) * entry.size;
    try {
      entry.items.resize(size);
    } catch (const std::bad_alloc&) {
      LOG(FATAL) << "out of memory: " << count << " images of the blob '"
                 << entry.blob << "' take " << size * sizeof(Dtype) << " bytes";
    }
  }
  std::map<std::string, const Dtype*> items;
  for (const auto& input : inputs) {
    items[input.first] = input.second(first, count);
  }
  for (int done = 0; done < count; done += batch_) {
    const int now = std::min(batch_, count - done);
    for (const auto& input : items) {
      Blob<Dtype>* blob = net_->blob_by_name(input.first).get();
      const size_t size = ItemSize(*blob);
      std::copy_n(input.second + done * size, now * size,
                  blob->mutable_cpu_data());
    }
    for (int layer : fixed_part_) net_->ForwardFromTo(layer, layer);
    for (Entry& entry : entries_) {
      std::copy_n(net_->blob_by_name(entry.blob)->cpu_data(),
                  static_cast<size_t>(now) * entry.size,
                  entry.items.data() + static_cast<size_t>(done) * entry.size);
      if (spoiled_.empty() &&
          !AllFinite(net_->blob_by_name(entry.blob)->cpu_data(),
                     static_cast<size_t>(now) * entry.size)) {
        spoiled_ = FirstNotFinite(*net_, fixed_part_);
      }
    }
    for (const auto& keep : kept) {
      const Blob<Dtype>& blob = *net_->blob_by_name(keep.first);
      const size_t size = ItemSize(blob);
      std::copy_n(blob.cpu_data(), now * size,
                  keep.second + (first + done) * size);
    }
  }
}

// Puts collected images into the entries of a copy of the net.
template <typename Dtype>
void MonteCarlo<Dtype>::Load(int first, int count, Net<Dtype>* net) const {
  for (const Entry& entry : entries_) {
    Blob<Dtype>* blob = net->blob_by_name(entry.blob).get();
    std::vector<int> shape = blob->shape();
    shape[0] = whole_batches_ ? portion_ : count;
    blob->Reshape(shape);
    const size_t size = entry.size;
    Dtype* to = blob->mutable_cpu_data();
    std::copy_n(entry.items.data() + first * size, count * size, to);
    // The last image fills up its batch.
    for (int i = count; i < shape[0]; ++i) {
      std::copy_n(to + (count - 1) * size, size, to + i * size);
    }
  }
}

template <typename Dtype>
void MonteCarlo<Dtype>::CheckOutput(const Dtype* output, size_t count,
                                    int first, uint64_t draw,
                                    const Net<Dtype>* net) const {
  if (AllFinite(output, count)) return;
  size_t i = 0;
  while (std::isfinite(output[i])) ++i;
  std::string layer = spoiled_;
  if (layer.empty() && net) {
    std::vector<int> layers(net->layers().size());
    std::iota(layers.begin(), layers.end(), 0);
    layer = FirstNotFinite(*net, layers);
  }
  LOG(FATAL) << "the output '" << output_ << "' of image "
             << first + i / ItemSize(*net_->blob_by_name(output_))
             << " in draw " << (draw & ~kMirrored)
             << (draw & kMirrored ? " (mirrored)" : "") << " is " << output[i]
             << ", but must be finite; the first layer that is not is '"
             << layer << "'";
}

template <typename Dtype>
bool MonteCarlo<Dtype>::OverwritesEntries() const {
  for (int i : random_part_) {
    for (const std::string& top : net_->layers()[i]->layer_param().top()) {
      for (const Entry& entry : entries_) {
        if (entry.blob == top) return true;
      }
    }
  }
  return false;
}

// Tells a copy of the net where its draw is or is to be; without a place, it
// has one of its own.
template <typename Dtype>
void MonteCarlo<Dtype>::PlaceDraw(int worker, const Place* place,
                                  bool is_drawn) {
  if (draw_bytes_ == 0) return;
  Memory& own = own_places_[worker];
  if (!place && !own) {
    own = KeptDraws<Dtype>::Allocate(draw_bytes_);
    CHECK(own) << "out of memory: a draw takes " << draw_bytes_ << " bytes";
  }
  char* at = place ? place->memory.get() : own.get();
  ForEachStochastic(*workers_[worker], [&](Stochastic* layer) {
    layer->PlaceDraw(at, is_drawn);
    at += layer->draw_bytes();
  });
}

// Takes the collected images through all draws.
template <typename Dtype>
bool MonteCarlo<Dtype>::RunDraws(const std::vector<uint64_t>& draws, int first,
                                 int count, int images, Dtype* out,
                                 const Progress& progress) {
  const size_t size = ItemSize(*net_->blob_by_name(output_));
  const auto place = [&](int draw, int image) {
    return out + (static_cast<size_t>(draw) * images + first + image) * size;
  };
  const double total = static_cast<double>(draws.size()) * images;
  const double before = static_cast<double>(draws.size()) * first;
  if (random_part_.empty()) {
    CheckOutput(entries_[0].items.data(), count * size, first, draws[0],
                nullptr);
    for (int d = 0; d < draws.size(); ++d) {
      std::copy_n(entries_[0].items.data(), count * size, place(d, 0));
    }
    return progress((before + static_cast<double>(draws.size()) * count) /
                    total);
  }
  std::atomic<int64_t> done(0);
  std::atomic<bool> stop(false);
  const std::thread::id caller = std::this_thread::get_id();
  const int portions = (count + portion_ - 1) / portion_;
  const std::vector<Place*> kept = kept_draws_.Find(draws);
  // Runs a portion of the images through one draw. Without `load` the net has
  // the images already; with `hold` it has the weights of the draw.
  const auto run = [&](Net<Dtype>* net, int draw, int portion, bool load,
                       bool hold) {
    const int from = portion * portion_;
    const int now = std::min(portion_, count - from);
    if (load) Load(from, now, net);
    SetDraw(*net, draws[draw]);
    Hold(*net, hold);
    net->Forward();
    std::copy_n(net->blob_by_name(output_)->cpu_data(), now * size,
                place(draw, from));
    CheckOutput(place(draw, from), now * size, first + from, draws[draw], net);
    done += now;
    // Progress is reported in the caller's own thread.
    if (std::this_thread::get_id() == caller &&
        !progress((before + done) / total)) {
      stop = true;
    }
  };
  if (Caffe::mode() == Caffe::GPU) {
    // Images stay on the GPU: drawing weights again takes less time than
    // copying images there again.
    const bool reload = OverwritesEntries();
    for (int p = 0; p < portions; ++p) {
      for (int draw = 0; draw < draws.size() && !stop; ++draw) {
        run(workers_[0].get(), draw, p, draw == 0 || reload, false);
      }
    }
    return !stop;
  }
  // With few draws, the images of a draw are divided among the threads too.
  int parts = 1;
  while (draws.size() * parts < 2 * workers_.size() && 2 * parts <= portions) {
    parts *= 2;
  }
  std::vector<bool> were_drawn;
  for (const auto* place : kept) {
    were_drawn.push_back(place && place->is_drawn);
  }
  std::atomic<int> next(0);
  engine::ParallelFor(workers_.size(), [&](int w) {
    try {
      for (int task = next++; task < draws.size() * parts && !stop;
           task = next++) {
        const int part = task % parts;
        const int begin = portions * part / parts;
        const int end = portions * (part + 1) / parts;
        // The draw is kept by the thread that has its first images.
        const int draw = task / parts;
        const bool is_drawn = were_drawn[draw];
        const bool keeps = kept[draw] && !is_drawn && part == 0;
        PlaceDraw(w, is_drawn || keeps ? kept[draw] : nullptr, is_drawn);
        for (int p = begin; p < end && !stop; ++p) {
          run(workers_[w].get(), draw, p, true, p > begin);
          if (keeps) kept[draw]->is_drawn = true;
        }
      }
    } catch (...) {
      stop = true;
      throw;
    }
  });
  return !stop && progress((before + done) / total);
}

template <typename Dtype>
bool MonteCarlo<Dtype>::Run(const std::vector<uint64_t>& draws, int images,
                            const Inputs& inputs, const Kept& kept, Dtype* out,
                            const Progress& progress) {
  ShareParameters();
  UpdateKeptDraws();
  size_t input_size = 0;
  for (const auto& input : inputs) {
    CheckItems(input.first);
    input_size += ItemSize(*net_->blob_by_name(input.first));
  }
  for (const auto& keep : kept) CheckItems(keep.first);
  size_t entry_size = 0;
  for (const Entry& entry : entries_) entry_size += entry.size;
  const size_t bytes =
      std::max<size_t>({1, input_size, entry_size}) * sizeof(Dtype);
  // Whole batches, so that none is read twice.
  const int batches = std::max<size_t>(1, kCollectedBytes / bytes / batch_);
  const int collected = batches * batch_;
  for (int first = 0; first < images; first += collected) {
    const int count = std::min(collected, images - first);
    Collect(first, count, inputs, kept);
    if (!RunDraws(draws, first, count, images, out, progress)) return false;
  }
  return true;
}

template class MonteCarlo<float>;
template class MonteCarlo<double>;

}  // namespace bayes
}  // namespace caffe
