#ifndef CAFFE_BAYES_MEAN_TEST_HPP_
#define CAFFE_BAYES_MEAN_TEST_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "caffe/common.hpp"
#include "caffe/net.hpp"

namespace caffe {
namespace bayes {

/**
 * @brief Tests the mean prediction of several draws of a net, beside a solver's
 *        test of one.
 *
 * The prediction for an image is the mean of its class probabilities over the
 * draws 0, 1, … The probabilities and labels are those of the net's last
 * SoftmaxWithLoss layer, or else of its last Accuracy layer.
 *
 * It has a net of its own, whose data layers go through the same images as the
 * solver's, so that nothing the solver computes depends on it.
 */
template <typename Dtype>
class MeanTest {
 public:
  /// @param param a test net, with its data layers
  MeanTest(const NetParameter& param, int draws);

  /**
   * @brief Tests the next images.
   *
   * @param trained the net whose parameters are tested
   * @param batches how many batches of images
   * @param go_on   asked now and then; false stops the test
   * @return whether it came to its end, and error() and loss() are there
   */
  bool Run(const Net<Dtype>* trained, int batches,
           const std::function<bool()>& go_on);

  /// The share of labels that are not the most probable class of the mean, and
  /// the mean of -ln of the probability that it gives to the label.
  double error() const { return wrong_ / labels_; }
  double loss() const { return loss_ / labels_; }

  const Net<Dtype>& net() const { return *net_; }

 private:
  void FindScores();
  void Count(const std::vector<Dtype>& scores, const std::vector<Dtype>& labels,
             int images);

  shared_ptr<Net<Dtype> > net_;
  std::vector<uint64_t> draws_;
  /// The blobs of the scores (images x classes x places) and of the labels
  /// (images x places), and whether the scores are probabilities already.
  std::string scores_, label_;
  bool are_probabilities_ = false;
  int classes_ = 0, places_ = 0;
  bool has_ignored_label_ = false;
  int ignored_label_ = 0;
  double labels_ = 0, wrong_ = 0, loss_ = 0;
};

}  // namespace bayes
}  // namespace caffe

#endif  // CAFFE_BAYES_MEAN_TEST_HPP_
