// What a GPU does in an iteration of training, and several of them together.
// That each computes what the CPU does is tested beside the CPU's tests.

#ifndef CPU_ONLY

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "caffe/bayes/gpu.hpp"
#include "caffe/bayes/stochastic.hpp"
#include "caffe/net.hpp"
#include "caffe/parallel.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/test/test_caffe_main.hpp"

#ifdef SIMULATED_CUDA
#include "simulated_cuda.hpp"
#endif

namespace caffe {

typedef shared_ptr<Solver<float> > SolverPtr;

class GpuTest : public GPUDeviceTest<float> {
 protected:
  // A convolution and two inner products, of the type given, on fixed data.
  static string NetText(const string& type, const string& options) {
    const auto layer = [&](const string& name, const string& kind,
                           const string& bottom, const string& param) {
      return "layer { name: '" + name + "' type: '" + type + kind +
             "' bottom: '" + bottom + "' top: '" + name + "' " + param +
             " weight_filler { type: 'gaussian' std: 0.3 }"
             " bias_filler { type: 'gaussian' std: 0.3 } } " +
             options + " }";
    };
    return "layer { name: 'data' type: 'DummyData' top: 'x' top: 'y'"
           " dummy_data_param { shape { dim: 3 dim: 2 dim: 6 dim: 6 }"
           " shape { dim: 3 dim: 4 } data_filler { value: 0.5 }"
           " data_filler { value: 1 } } }" +
           layer("conv", "Convolution", "x",
                 "convolution_param { num_output: 3 kernel_size: 3") +
           layer("fc", "InnerProduct", "conv",
                 "inner_product_param { num_output: 40") +
           layer("out", "InnerProduct", "fc",
                 "inner_product_param { num_output: 4") +
           "layer { name: 'loss' type: 'EuclideanLoss' bottom: 'out'"
           " bottom: 'y' top: 'loss' }";
  }

  static SolverParameter Param(const string& net, const string& options) {
    SolverParameter param;
    // The options may say otherwise than what goes before them.
    for (const string& text :
         {string("lr_policy: 'fixed' base_lr: 0.01 momentum: 0.9 random_seed: 3"
                 " weight_decay: 0.01 snapshot_after_train: false"),
          options}) {
      CHECK(google::protobuf::TextFormat::MergeFromString(text, &param));
    }
    CHECK(google::protobuf::TextFormat::ParseFromString(
        net, param.mutable_net_param()));
    return param;
  }

  static SolverPtr MakeSolver(const string& net, const string& options = "") {
    return SolverPtr(SolverRegistry<float>::CreateSolver(Param(net, options)));
  }

  static const char kBayes[];
};
const char GpuTest::kBayes[] =
    "bayes_param { kl_weight: 1 dataset_size: 100 prior_std: 1 tau_init: 0.5 }";

// Whatever the period and the offset are, and whether or not they are multiples
// of four.
TEST_F(GpuTest, BitsAreTheNamedOnes) {
  const bayes::NoiseKey key = bayes::MakeNoiseKey(1, "drop", 0);
  const int kMany = 3 << 20;
  vector<uint32_t> expected(kMany + 6);
  const uint64_t draw = 0x123456789u;
  bayes::FillBits(key, draw, 0, kMany + 6, expected.data());
  for (int period : {1, 3, 4, 1021, 4096, kMany}) {
    for (int n : {period, 2 * period + 1, 3}) {
      if (n > kMany) continue;
      Blob<unsigned int> bits(vector<int>(1, n + 2));
      std::fill_n(bits.mutable_cpu_data(), n + 2, 7);
      const int offset = n % 7;
      bayes::gpu::FillBits(key, draw, offset, period, n,
                           bits.mutable_gpu_data());
      int wrong = 0;
      for (int i = 0; i < n; ++i) {
        wrong += bits.cpu_data()[i] != expected[offset + i % period];
      }
      EXPECT_EQ(0, wrong) << "period " << period << ", " << n << " numbers";
      EXPECT_EQ(7, bits.cpu_data()[n]);
    }
  }
}

#ifdef SIMULATED_CUDA

// What an iteration of a Bayesian net takes beyond that of the stock one:
// docs/gpu.md counts the same.
TEST_F(GpuTest, AnIterationTakesTheseKernelsAndNoCopies) {
  simulated_cuda::Counters counters[2];
  const string nets[2] = {NetText("", ""), NetText("Bayes", kBayes)};
  for (int bayes = 0; bayes < 2; ++bayes) {
    const SolverPtr solver = MakeSolver(nets[bayes]);
    solver->Step(2);
    simulated_cuda::ResetCounters();
    solver->Step(1);
    counters[bayes] = simulated_cuda::ReadCounters();
  }
  const auto& stock = counters[0];
  const auto& bayes = counters[1];
  // The loss, which the host computes, and the device weighs.
  EXPECT_EQ(1, stock.host_to_device.calls);
  EXPECT_EQ(1, bayes.host_to_device.calls);
  EXPECT_EQ(0, bayes.device_to_host.calls);
  EXPECT_EQ(stock.device_to_device.calls, bayes.device_to_device.calls);
  std::map<string, int> more;
  const auto count = [&](const std::map<string, int64_t>& calls, int sign) {
    for (const auto& call : calls) {
      more[call.first.substr(0, call.first.find('<'))] += sign * call.second;
    }
  };
  count(bayes.launches, 1);
  count(bayes.library_calls, 1);
  count(stock.launches, -1);
  count(stock.library_calls, -1);
  // Of three layers with weights and biases.
  const std::map<string, int> expected = {{"ForwardKernel", 6},
                                          {"BackwardKernel", 6},
                                          {"AddDeltaGradientKernel", 6},
                                          // delta and delta_b are parameters.
                                          {"SGDUpdate", 6},
                                          {"cublasSaxpy", 6}};
  for (const auto& found : more) {
    const auto it = expected.find(found.first);
    EXPECT_EQ(it == expected.end() ? 0 : it->second, found.second)
        << found.first;
  }
  for (const auto& wanted : expected) EXPECT_TRUE(more.count(wanted.first));
  EXPECT_EQ(stock.memsets.calls + 6, bayes.memsets.calls);
  EXPECT_EQ(stock.memsets.bytes + 6 * sizeof(float), bayes.memsets.bytes);
}

// However the noise of a batch is made.
TEST_F(GpuTest, NoWayToDrawCopiesAnything) {
  for (const string way : {"draws_per_batch: 2", "draws_per_batch: 3"}) {
    SCOPED_TRACE(way);
    string options = kBayes;
    options.insert(options.find('{') + 1, way + " ");
    const SolverPtr solver = MakeSolver(NetText("Bayes", options));
    solver->Step(2);
    simulated_cuda::ResetCounters();
    solver->Step(1);
    const auto counters = simulated_cuda::ReadCounters();
    EXPECT_EQ(1, counters.host_to_device.calls);
    EXPECT_EQ(0, counters.device_to_host.calls);
  }
}

#endif  // SIMULATED_CUDA

#ifdef USE_NCCL

// Two GPUs: each has the noise of its own seed, and a step takes the mean of
// their gradients, those of delta too.
TEST_F(GpuTest, SeveralAverageTheGradientsOfTheirDraws) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    LOG(WARNING) << "this test wants two GPUs, and there are " << devices;
    return;
  }
  const string net = NetText("Bayes", kBayes);
  const string options = "weight_decay: 0 momentum: 0 max_iter: 1";
  // The parameters at the start, and the gradients of each GPU's first draw.
  vector<vector<double> > start, mean;
  for (int rank = 0; rank < 2; ++rank) {
    const SolverPtr solver =
        MakeSolver(net, options + " random_seed: " + std::to_string(3 + rank));
    const auto& params = solver->net()->learnable_params();
    for (int i = 0; i < params.size(); ++i) {
      Blob<float>* param = params[i];
      if (rank == 0) {
        start.emplace_back(param->cpu_data(),
                           param->cpu_data() + param->count());
        mean.emplace_back(param->count(), 0);
      }
      std::copy(start[i].begin(), start[i].end(), param->mutable_cpu_data());
    }
    solver->net()->ClearParamDiffs();
    solver->net()->ForwardBackward();
    for (int i = 0; i < params.size(); ++i) {
      for (int j = 0; j < params[i]->count(); ++j) {
        mean[i][j] += params[i]->cpu_diff()[j] / 2;
      }
    }
  }
  for (const string reduce : {"true", "false"}) {
    SCOPED_TRACE("layer_wise_reduce: " + reduce);
    Caffe::set_solver_count(2);
    const SolverPtr solver =
        MakeSolver(net, options + " device_id: 0 layer_wise_reduce: " + reduce);
    NCCL<float> nccl(solver);
    nccl.Run({0, 1}, nullptr);
    Caffe::set_solver_count(1);
    const auto& params = solver->net()->learnable_params();
    ASSERT_EQ(start.size(), params.size());
    for (int i = 0; i < params.size(); ++i) {
      for (int j = 0; j < params[i]->count(); ++j) {
        EXPECT_NEAR(start[i][j] - 0.01 * mean[i][j], params[i]->cpu_data()[j],
                    1e-5 * (1 + std::fabs(start[i][j])))
            << "parameter " << i << ", number " << j;
      }
    }
  }
}

#endif  // USE_NCCL

}  // namespace caffe

#endif  // CPU_ONLY
