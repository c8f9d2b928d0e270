#ifndef CAFFE_BAYES_POSTERIOR_HPP_
#define CAFFE_BAYES_POSTERIOR_HPP_

#include <functional>
#include <vector>

#include "caffe/bayes/noise.hpp"
#include "caffe/bayes/weights.hpp"
#include "caffe/blob.hpp"
#include "caffe/common.hpp"

namespace caffe {
namespace bayes {

namespace gpu {
template <typename Dtype>
struct Delta;
template <typename Dtype>
struct Written;
}  // namespace gpu

/// Where `scale` times a posterior's KL is to be added: to the number in `sum`.
template <typename Dtype>
struct KLTerm {
  Dtype scale = 0;
  Blob<Dtype>* sum = nullptr;
  explicit operator bool() const { return sum != nullptr; }
};

/**
 * @brief The posterior of one parameter blob: its means m, their relative
 *        uncertainty tau = softplus(delta), the noise epsilon of the current
 *        draw, and the prior. formulas.hpp has the mathematics.
 *
 * The three blobs belong to the layer, which shows them to the solver; this
 * class only knows what they mean. It computes on the device of Caffe's mode:
 * on the CPU here, on the GPU by the kernels of posterior.cu, and copies
 * nothing between the two.
 */
template <typename Dtype>
class Posterior {
 public:
  /**
   * @param m       the means, of any shape
   * @param delta   one number, or of as many axes as m: each is as long as in
   *                m, or 1 where weights have one tau. The long ones must be
   *                neighbours
   * @param epsilon the noise, of the shape of m
   * @param tau_min the floor: each delta is kept where tau >= tau_min
   */
  Posterior(const shared_ptr<Blob<Dtype> >& m,
            const shared_ptr<Blob<Dtype> >& delta,
            const shared_ptr<Blob<Dtype> >& epsilon, Dtype tau_min);

  /// One prior N(mean, std^2) for every weight.
  void SetPrior(Dtype mean, Dtype std);
  /// A prior of its own for each weight; both blobs have the shape of m.
  void SetPrior(const shared_ptr<Blob<Dtype> >& mean,
                const shared_ptr<Blob<Dtype> >& std);

  /// The relative uncertainty, for each number of delta.
  vector<Dtype> Taus() const;
  /// Raises delta to its floor where an update of the solver took it below. It
  /// leaves the floor again when the gradient says so. The functions below call
  /// this themselves.
  void RaiseDelta();
  /// Tells that delta stays as it is: Sample need not look at it again.
  void FixTaus();

  // Each of these adds KL to `kl`, unless that is empty. On a GPU this takes no
  // second pass over m.

  /// Fills epsilon with the noise of a draw and w with its weights.
  void Sample(const NoiseKey& key, uint64_t draw, Blob<Dtype>* w,
              const KLTerm<Dtype>& kl = {});
  /// Fills epsilon with 0 and w with the means.
  void Mean(Blob<Dtype>* w, const KLTerm<Dtype>& kl = {});
  /// Fills `variance` with the variance of each weight, for SampleOutput.
  void Variance(Blob<Dtype>* variance, const KLTerm<Dtype>& kl = {});
  /// Adds KL(q || p) of the whole blob, constants included: 0 when q = p.
  void AddKL(const KLTerm<Dtype>& kl);

  /// KL(q || p) of the whole blob.
  Dtype KL();

  /**
   * @brief Adds to the gradients of m and delta what the loss of the current
   *        draw and the prior contribute.
   *
   * @param w           its diff holds the gradient of the loss by the weights
   *                    drawn, and is 0 afterwards, for the next to add up
   * @param kl_scale    the factor on KL
   * @param learn_m     whether m's gradient is wanted
   * @param learn_delta whether delta's gradient is wanted
   */
  void Backward(Blob<Dtype>* w, Dtype kl_scale, bool learn_m, bool learn_delta);

  /// The same for a parameter that no cache holds, on the CPU, without a blob
  /// for the gradient by the weights drawn: `gradient(first, n, w_diff)`
  /// computes it for n weights at a time, from number `first` on, and it is
  /// used up while it is in the cache. Only where all weights have one tau.
  /// @param strip how many weights at a time
  void BackwardInStrips(
      int strip,
      const std::function<void(int first, int n, Dtype* w_diff)>& gradient,
      Dtype kl_scale, bool learn_m, bool learn_delta);
  bool has_one_tau() const { return grouping_.groups == 1; }

  /// The same where outputs were drawn: the diff of `variance` holds the
  /// gradient of the loss by the variances of the weights. The stock layer adds
  /// what the loss contributes by way of the outputs' means.
  void BackwardVariance(Blob<Dtype>* variance, Dtype kl_scale, bool learn_m,
                        bool learn_delta);

 private:
  void ComputeTaus(vector<Dtype>* taus) const;
  /// Raises delta and computes taus_.
  void UpdateTaus();
  /// Calls function(first, n, taus) for parts of the weights that it is given,
  /// in their order. The taus of a part have one of the forms of weights.hpp.
  template <typename Function>
  void ForEachPart(const vector<Dtype>& taus, int first, int n,
                   Function function) const;
  /// Adds to the gradient of a group's delta, given sums over its weights.
  void AddDeltaGradient(int group, const TauSums& sums, Dtype kl_scale);
  template <typename Loss>
  void BackwardFrom(Loss loss, Dtype kl_scale, bool learn_m, bool learn_delta);
  /// Calls `function` with the prior, whichever of its two forms it has.
  template <typename Function>
  void WithPrior(Function function) const;

  // For the GPU.
  gpu::Delta<Dtype> GpuDelta();
  double* GpuSums();
  void WriteOnGpu(const gpu::Written<Dtype>& written, const KLTerm<Dtype>& kl);
  template <typename Loss>
  void BackwardOnGpu(Loss loss, Dtype kl_scale, bool learn_m, bool learn_delta);

  shared_ptr<Blob<Dtype> > m_, delta_, epsilon_;
  Dtype delta_min_ = 0;
  Grouping grouping_;
  /// On the CPU: the tau of each group in the latest forward pass, if it needed
  /// them.
  vector<Dtype> taus_;
  bool has_taus_ = false, taus_are_fixed_ = false;
  /// The prior of every weight, unless each has its own in the blobs below.
  Dtype prior_mean_ = 0, prior_std_ = 1;
  shared_ptr<Blob<Dtype> > prior_means_, prior_stds_;
  /// Sums of parts of the weights, on the GPU.
  shared_ptr<Blob<double> > gpu_sums_;
};

/**
 * @brief Local reparametrisation (Kingma, Salimans and Welling, 2015): given
 * its input, the output of a layer with normal weights is normal. Draws it from
 * its mean, which `output` holds, and its variance.
 *
 * @param offset  which number of the draw is the first; on the CPU only
 * @param epsilon keeps the noise for SampleOutputBackward
 */
template <typename Dtype>
void SampleOutput(const NoiseKey& key, uint64_t draw, uint64_t offset,
                  const Blob<Dtype>& variance, Blob<Dtype>* epsilon,
                  Blob<Dtype>* output);

/// Turns the gradient by the output into that by its variance; the one by its
/// mean is the same.
template <typename Dtype>
void SampleOutputBackward(const Blob<Dtype>& output, const Blob<Dtype>& epsilon,
                          Blob<Dtype>* variance);

/// The squares of an input, and what its gradient gets by way of them.
template <typename Dtype>
void Square(const Blob<Dtype>& input, Blob<Dtype>* squares);
template <typename Dtype>
void SquareBackward(const Blob<Dtype>& squares, Blob<Dtype>* input);

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_POSTERIOR_HPP_
