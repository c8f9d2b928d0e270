// Ranks that train one net together, with one process that plays all of them.
// tests/python/test_mpi.py has the tests with MPI.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caffe/ranks/divide_batch.hpp"
#include "caffe/ranks/ranks.hpp"
#include "caffe/ranks/train.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/solver_factory.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "expect_error.hpp"

namespace caffe {

// Rank `rank` of `count`, all of which have the numbers of this one.
class LikeRanks : public Ranks {
 public:
  LikeRanks(int rank, int count) : rank_(rank), count_(count) {}
  int rank() const override { return rank_; }
  int count() const override { return count_; }
  int local_rank() const override { return rank_; }
  int local_count() const override { return count_; }
  void StartSum(float* numbers, int n) override { Start(numbers, n); }
  void StartSum(double*, int) override { FAIL(); }
  void Wait() override {
    for (const Sum& sum : sums_) {
      for (int i = 0; i < sum.before.size(); ++i) {
        // Nothing is added to a gradient whose sum was started.
        ASSERT_EQ(sum.before[i], sum.numbers[i]);
        sum.numbers[i] *= count_;
      }
    }
    sums_.clear();
  }
  void Broadcast(void*, size_t) override {}
  int64_t Smallest(int64_t number) override { return number; }
  void Progress() override { most_at_once_ = std::max(most_at_once_, sums()); }
  void Abort() override { FAIL(); }

  int sums() const { return sums_.size(); }
  int most_at_once() const { return most_at_once_; }

 private:
  struct Sum {
    float* numbers;
    std::vector<float> before;
  };
  void Start(float* numbers, int n) {
    sums_.push_back({numbers, std::vector<float>(numbers, numbers + n)});
  }

  const int rank_, count_;
  std::vector<Sum> sums_;
  int most_at_once_ = 0;
};

class RanksTest : public CPUDeviceTest<float> {
 protected:
  ~RanksTest() override { Ranks::Set(nullptr); }

  // Two layers share parameters, and one has none that learn.
  static std::unique_ptr<Solver<float> > MakeSolver() {
    const string product =
        "inner_product_param { num_output: 8 weight_filler { type: 'xavier' } "
        "bias_filler { type: 'constant' value: 0.1 } } ";
    SolverParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        "type: 'SGD' base_lr: 0.1 momentum: 0.9 weight_decay: 0.01 iter_size: 2"
        " lr_policy: 'fixed' random_seed: 3 max_iter: 5 snapshot_after_train: 0"
        " net_param {"
        "layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'"
        " dummy_data_param { shape { dim: 6 dim: 8 } shape { dim: 6 dim: 8 }"
        " data_filler { type: 'gaussian' } data_filler { type: 'gaussian' } } }"
        "layer { name: 'a' type: 'InnerProduct' bottom: 'x' top: 'a'"
        " param { name: 'w' } param { name: 'b' } " +
            product +
            "} layer { name: 'b' type: 'BayesInnerProduct' bottom: 'a'"
            " top: 'b' bayes_param { kl_weight: 1 dataset_size: 10 } " +
            product +
            "} layer { name: 'c' type: 'InnerProduct' bottom: 'b' top: 'c'"
            " param { lr_mult: 0 } param { lr_mult: 0 } " +
            product +
            "} layer { name: 'd' type: 'InnerProduct' bottom: 'c' top: 'd'"
            " param { name: 'w' } param { name: 'b' } " +
            product +
            "} layer { name: 'e' type: 'InnerProduct' bottom: 'd' top: 'e' " +
            product +
            "} layer { name: 'l' type: 'EuclideanLoss' bottom: 'e' bottom: 'y'"
            " top: 'l' } }",
        &param));
    return std::unique_ptr<Solver<float> >(
        SolverRegistry<float>::CreateSolver(param));
  }

  static std::vector<float> Weights(Solver<float>* solver) {
    std::vector<float> weights;
    for (const Blob<float>* blob : solver->net()->learnable_params()) {
      const float* data = blob->cpu_data();
      weights.insert(weights.end(), data, data + blob->count());
    }
    return weights;
  }

  static NetParameter Parse(const string& text) {
    NetParameter net;
    CHECK(google::protobuf::TextFormat::ParseFromString(text, &net));
    return net;
  }
};

// Whatever the parts are, the mean of gradients that are the same is theirs.
TEST_F(RanksTest, MeanOfLikeGradientsIsTheGradient) {
  const std::unique_ptr<Solver<float> > alone = MakeSolver();
  alone->Step(5);
  const std::vector<float> expected = Weights(alone.get());
  for (size_t part_bytes : {1, 300, 1 << 20}) {
    LikeRanks ranks(0, 4);
    const std::unique_ptr<Solver<float> > solver = MakeSolver();
    GradientMean<float> mean(solver.get(), &ranks, part_bytes);
    solver->add_callback(&mean);
    solver->net()->add_after_backward(&mean);
    solver->Step(5);
    EXPECT_EQ(expected, Weights(solver.get())) << part_bytes;
    EXPECT_EQ(0, ranks.sums());
    EXPECT_EQ(mean.num_parts(), ranks.most_at_once());
    // Eight parameters learn: w, b, the four of layer b, and the two of e.
    EXPECT_EQ(part_bytes == 1     ? 8
              : part_bytes == 300 ? 4
                                  : 1,
              mean.num_parts());
  }
}

TEST_F(RanksTest, APartOfEachBatchIsForEachRank) {
  // Two ranks of three records each: 0, 1, 2 and 6, 7, 8 are of rank 0.
  Ranks::Set(std::unique_ptr<Ranks>(new LikeRanks(0, 2)));
  string found;
  for (int i = 0; i < 10; ++i) found += ranks::IsForAnother(i, 3) ? '-' : 'x';
  EXPECT_EQ("xxx---xxx-", found);
  Ranks::Set(std::unique_ptr<Ranks>(new LikeRanks(1, 2)));
  found.clear();
  for (int i = 0; i < 10; ++i) found += ranks::IsForAnother(i, 3) ? '-' : 'x';
  EXPECT_EQ("---xxx---x", found);
}

TEST_F(RanksTest, AProcessAloneIsRankZeroOfOne) {
  EXPECT_EQ(0, ranks::Rank());
  EXPECT_EQ(1, ranks::Count());
  EXPECT_FALSE(ranks::IsForAnother(5, 3));
  float number = 7;
  ranks::Average(&number, 1);
  EXPECT_EQ(7, number);
  EXPECT_EQ(3, ranks::FromFirst(3));
}

TEST_F(RanksTest, BatchesAreDivided) {
  Ranks::Set(std::unique_ptr<Ranks>(new LikeRanks(0, 3)));
  NetParameter net = Parse(
      "layer { name: 'a' type: 'Data' data_param { batch_size: 6 } }"
      "layer { name: 'b' type: 'ImageData' image_data_param { batch_size: 9 } }"
      "layer { name: 'c' type: 'HDF5Data' hdf5_data_param { batch_size: 3 } }"
      "layer { name: 'd' type: 'Parameter' }");
  DivideBatch(&net);
  EXPECT_EQ(2, net.layer(0).data_param().batch_size());
  EXPECT_EQ(3, net.layer(1).image_data_param().batch_size());
  EXPECT_EQ(1, net.layer(2).hdf5_data_param().batch_size());
  EXPECT_ERROR(DivideBatch(&net),
               "'a': data_param.batch_size is 2, .* multiple of 3");
  NetParameter dummy = Parse("layer { name: 'x' type: 'DummyData' }");
  EXPECT_ERROR(DivideBatch(&dummy), "'x': the batch .* DummyData");
  Ranks::Get()->set_divides_batch(false);
  DivideBatch(&net);
  DivideBatch(&dummy);
  EXPECT_EQ(2, net.layer(0).data_param().batch_size());
}

}  // namespace caffe
