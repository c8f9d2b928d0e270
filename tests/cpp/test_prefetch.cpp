// The thread with which a data layer reads ahead: what it gives, its errors,
// and how it ends. `make test-tsan` runs these, too.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <boost/filesystem.hpp>
#include <memory>
#include <string>
#include <vector>

#include "caffe/bayes/stochastic.hpp"
#include "caffe/engine/team.hpp"
#include "caffe/net.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "caffe/util/db.hpp"
#include "caffe/util/io.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

const int kRecords = 7;

class PrefetchTest : public CPUDeviceTest<float> {
 protected:
  PrefetchTest() : team_before_(engine::TeamSize()) {
    MakeTempDir(&folder_);
    engine::SetTeamSize(4);
    Caffe::set_random_seed(1701);
  }
  ~PrefetchTest() override {
    engine::SetTeamSize(team_before_);
    boost::filesystem::remove_all(folder_);
  }

  // Record i is an image of 2 x 3 pixels, all i, with the label i. The one that
  // is broken lacks a pixel.
  void WriteRecords(int broken = -1) {
    std::unique_ptr<db::DB> db(db::GetDB("lmdb"));
    db->Open(folder_ + "/lmdb", db::NEW);
    std::unique_ptr<db::Transaction> transaction(db->NewTransaction());
    for (int i = 0; i < kRecords; ++i) {
      Datum datum;
      datum.set_channels(1);
      datum.set_height(2);
      datum.set_width(3);
      datum.set_label(i);
      datum.set_data(std::string(i == broken ? 5 : 6, static_cast<char>(i)));
      transaction->Put(std::to_string(i), datum.SerializeAsString());
    }
    transaction->Commit();
  }

  std::string DataLayerText(int batch_size) const {
    return "layer { name: 'data' type: 'Data' top: 'data' top: 'label'"
           "        data_param { source: '" +
           folder_ + "/lmdb' backend: LMDB prefetch: 2 batch_size: " +
           std::to_string(batch_size) + " } }";
  }

  static std::unique_ptr<Net<float> > MakeNet(const std::string& text) {
    NetParameter param;
    CHECK(google::protobuf::TextFormat::ParseFromString(text, &param));
    param.mutable_state()->set_phase(TRAIN);
    return std::unique_ptr<Net<float> >(new Net<float>(param));
  }

  // The next batch begins with the record `first`.
  static void ExpectBatch(int first, Net<float>* net) {
    net->Forward();
    const Blob<float>& data = *net->blob_by_name("data");
    const Blob<float>& label = *net->blob_by_name("label");
    for (int i = 0; i < data.shape(0); ++i) {
      const int record = (first + i) % kRecords;
      EXPECT_EQ(record, label.cpu_data()[i]);
      for (int pixel = 0; pixel < 6; ++pixel) {
        EXPECT_EQ(record, data.cpu_data()[6 * i + pixel]);
      }
    }
  }

  std::string folder_;

 private:
  const int team_before_;
};

}  // namespace

TEST_F(PrefetchTest, BatchesComeInOrder) {
  WriteRecords();
  const auto net = MakeNet(DataLayerText(3));
  for (int batch = 0; batch < 100; ++batch) ExpectBatch(3 * batch, net.get());
}

TEST_F(PrefetchTest, ForwardPassesAreSkipped) {
  WriteRecords();
  const auto net = MakeNet(DataLayerText(3));
  for (int batch = 0; batch < 20; ++batch) {
    ExpectBatch(0, net.get());
    bayes::ResumeAt(*net, batch);
    for (int i = 0; i < 3; ++i) ExpectBatch(3 * (batch + i), net.get());
    bayes::ResumeAt(*net, 0);
  }
}

TEST_F(PrefetchTest, AnErrorComesAfterTheBatchesBeforeIt) {
  WriteRecords(5);
  const auto net = MakeNet(DataLayerText(2));
  for (int round = 0; round < 20; ++round) {
    ExpectBatch(0, net.get());
    ExpectBatch(2, net.get());
    for (int again = 0; again < 2; ++again) {
      EXPECT_ERROR(net->Forward(),
                   "layer 'data': record '5' of .*/lmdb: has 5 numbers, but "
                   "its shape is 1 x 2 x 3$");
    }
    bayes::ResumeAt(*net, 0);
  }
}

TEST_F(PrefetchTest, EndsAtAnyTime) {
  WriteRecords();
  for (int round = 0; round < 50; ++round) {
    const auto net = MakeNet(DataLayerText(2));
    for (int batch = 0; batch < round % 4; ++batch) {
      ExpectBatch(2 * batch, net.get());
    }
  }
}

// The thread of the training's data, that of the tests', and the team.
TEST_F(PrefetchTest, ReadsWhileTheTeamComputes) {
  WriteRecords();
  const std::string layers =
      "layer { name: 'ip' type: 'BayesInnerProduct' bottom: 'data' top: 'ip'"
      "        inner_product_param {"
      "          num_output: 64 weight_filler { type: 'xavier' } }"
      "        bayes_param { kl_weight: 0.1 dataset_size: 7 } }"
      "layer { name: 'ip2' type: 'InnerProduct' bottom: 'ip' top: 'ip2'"
      "        inner_product_param {"
      "          num_output: 7 weight_filler { type: 'xavier' } } }"
      "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip2'"
      "        bottom: 'label' top: 'loss' }";
  SolverParameter param;
  CHECK(google::protobuf::TextFormat::ParseFromString(
      "base_lr: 0.01 lr_policy: 'fixed' max_iter: 40 test_iter: 3 "
      "test_interval: 5 display: 0 snapshot_after_train: false "
      "net_param {" +
          DataLayerText(4) + layers + "}",
      &param));
  SGDSolver<float> solver(param);
  solver.Solve();
  EXPECT_EQ(40, solver.iter());
  // The next batch is the 41st.
  solver.net()->Forward();
  const float* labels = solver.net()->blob_by_name("label")->cpu_data();
  for (int i = 0; i < 4; ++i) EXPECT_EQ((160 + i) % kRecords, labels[i]);
}

}  // namespace caffe
