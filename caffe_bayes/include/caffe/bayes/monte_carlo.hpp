#ifndef CAFFE_BAYES_MONTE_CARLO_HPP_
#define CAFFE_BAYES_MONTE_CARLO_HPP_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "caffe/bayes/kept_draws.hpp"
#include "caffe/common.hpp"
#include "caffe/net.hpp"

namespace caffe {
namespace bayes {

/**
 * @brief Runs images through many draws of a net.
 *
 * The layers that do not depend on the draw run once for each image, in the net
 * itself and in its batches. What they pass to the other layers is collected,
 * for as many images as fit into a bounded memory. The other layers run in
 * copies of the net, one for each thread, which share its parameters: a thread
 * takes a draw, samples its weights once, and runs all collected images in
 * portions that fit into the cache. A GPU runs large portions, each through all
 * draws. The numbers do not depend on threads, batches or portions.
 *
 * Layers that depend on the draw, but that the output does not depend on, do
 * not run.
 *
 * Run may be called again, also after the parameters of the net have changed.
 */
template <typename Dtype>
class MonteCarlo {
 public:
  /// Gives `count` items from number `first` on to a top of an Input layer. It
  /// is asked in order, for each item once; the items need not outlive the next
  /// call. So the images need not be in memory all at once.
  typedef std::function<const Dtype*(int first, int count)> Source;
  typedef std::map<std::string, Source> Inputs;
  /// An array that a blob is copied to.
  typedef std::map<std::string, Dtype*> Kept;
  /// Told the share of the work that is done; false stops the run.
  typedef std::function<bool(double)> Progress;

  /// @param output the blob that is wanted, one item for each image
  /// @param draw_memory how many bytes of drawn weights to keep for the next
  ///        Run (see KeptDraws); not on a GPU, which draws faster than it reads
  /// @throw std::invalid_argument where that is not so, as Run does for the
  ///        blobs that it is given
  MonteCarlo(Net<Dtype>* net, const std::string& output,
             size_t draw_memory = 0);

  /**
   * @brief Writes out[(d * images + i) * size + j] = number j of the output for
   *        image i in the draw draws[d].
   *
   * @param images how many: from the sources in `inputs`, or else as the net's
   *        data layers give them
   * @param kept   blobs that do not depend on the draw to be copied, such as
   *        labels
   * @return whether it came to its end
   */
  bool Run(const std::vector<uint64_t>& draws, int images, const Inputs& inputs,
           const Kept& kept, Dtype* out, const Progress& progress);

  /// Whether this is what would be made now of the net, and can be used again:
  /// neither the shapes of its blobs have changed nor Caffe's mode or threads,
  /// and no layer is of a type of which nothing is known.
  bool IsCurrent() const;
  const std::string& output() const { return output_; }
  size_t draw_memory() const { return draw_memory_; }

  /// Whether a blob, as the net leaves it, does not depend on the draw.
  bool IsFixed(const std::string& blob) const {
    return !random_blobs_.count(blob);
  }

  /// The first random layer that makes the images of a batch depend on each
  /// other, or of which that is not known; empty if there is none. With one,
  /// batches are left as they are.
  std::string MixingLayer() const;

 private:
  typedef typename KeptDraws<Dtype>::Place Place;
  typedef typename KeptDraws<Dtype>::Memory Memory;

  /// A blob that the random part of the net takes from the rest of it.
  struct Entry {
    std::string blob;
    int size = 0;              // numbers of one image
    std::vector<Dtype> items;  // of the images collected
  };

  void FindLayers();
  void CheckItems(const std::string& blob) const;
  void MakeWorkers();
  int WorkersWanted() const;
  /// Lets the copies have the parameters of the net, as they are now.
  void ShareParameters();
  /// Drops the kept draws if the parameters that they depend on have changed.
  void UpdateKeptDraws();
  std::vector<std::vector<int> > Shapes() const;
  NetParameter WorkerParam() const;
  int Portion() const;
  void Collect(int first, int count, const Inputs& inputs, const Kept& kept);
  void Load(int first, int count, Net<Dtype>* net) const;
  /// Refuses an output with NaN or infinity. It begins with that of the image
  /// number `first`; `net` is the copy that computed it.
  void CheckOutput(const Dtype* output, size_t count, int first, uint64_t draw,
                   const Net<Dtype>* net) const;
  /// Whether a layer writes where the images are.
  bool OverwritesEntries() const;
  void PlaceDraw(int worker, const Place* place, bool is_drawn);
  bool RunDraws(const std::vector<uint64_t>& draws, int first, int count,
                int images, Dtype* out, const Progress& progress);

  Net<Dtype>* net_;
  std::string output_;
  size_t draw_memory_;
  Caffe::Brew mode_;
  /// The shapes of the net's blobs when the copies were made.
  std::vector<std::vector<int> > shapes_;
  int batch_ = 0;  // images that the net takes at once
  /// The layers that do not depend on the draw, and those of the others that
  /// the output depends on.
  std::vector<int> fixed_part_, random_part_;
  std::set<std::string> random_blobs_;
  std::vector<Entry> entries_;
  /// The first of the layers that do not depend on the draw that gave NaN or
  /// infinity; empty if none did.
  std::string spoiled_;
  /// Copies of the random part, and how many images they take at once: whole
  /// batches of the net, if a layer mixes the images of a batch.
  std::vector<shared_ptr<Net<Dtype> > > workers_;
  int portion_ = 0;
  bool whole_batches_ = false;
  KeptDraws<Dtype> kept_draws_;
  /// What a draw takes in memory, if draws are to be kept, and a place in each
  /// copy for those that are not.
  size_t draw_bytes_ = 0;
  std::vector<Memory> own_places_;
};

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_MONTE_CARLO_HPP_
