// The engine's threads: how many there are, what they do, and the memory that
// each has.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "caffe/common.hpp"
#include "caffe/engine/cores.hpp"
#include "caffe/engine/scratch.hpp"
#include "engine_trial.hpp"

namespace caffe {

TEST(TeamTest, DoesEachPieceOfWorkOnce) {
  for (int threads : {1, 2, 3, 5, 64}) {
    const WithThreads with_threads(threads);
    EXPECT_EQ(threads, engine::TeamSize());
    for (int n : {0, 1, 2, 3, 7, 1000}) {
      vector<int> times(n);
      engine::ParallelFor(n, [&](int i) { ++times[i]; });
      EXPECT_EQ(vector<int>(n, 1), times) << threads << " threads, " << n;
    }
  }
}

TEST(TeamTest, WorkInsideOfWorkIsDoneByOneThread) {
  const WithThreads with_threads(3);
  vector<int> sizes(10), sums(10);
  engine::ParallelFor(10, [&](int i) {
    sizes[i] = engine::TeamSize();
    engine::ParallelFor(100, [&](int j) { sums[i] += j; });
  });
  EXPECT_EQ(vector<int>(10, 1), sizes);
  EXPECT_EQ(vector<int>(10, 4950), sums);
  EXPECT_EQ(3, engine::TeamSize());
}

// Nets of several threads of a program ask for the team at the same time.
TEST(TeamTest, ServesSeveralThreads) {
  const WithThreads with_threads(3);
  vector<int> wrong(4);
  vector<std::thread> callers;
  for (int caller = 0; caller < wrong.size(); ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 300; ++round) {
        vector<int> found(50);
        engine::ParallelFor(50, [&](int i) { found[i] += round + i; });
        for (int i = 0; i < 50; ++i) wrong[caller] += found[i] != round + i;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(vector<int>(4, 0), wrong);
}

// ---- How many ---------------------------------------------------------------

TEST(CoresTest, FirstThreadCountReadsWhatOpenMPAllows) {
  EXPECT_EQ(4, engine::FirstThreadCount("4"));
  EXPECT_EQ(4, engine::FirstThreadCount(" 4 "));
  EXPECT_EQ(4, engine::FirstThreadCount("4,2"));
  EXPECT_EQ(4, engine::FirstThreadCount("4 , 2, 1"));
  for (const char* invalid :
       {"", " ", "0", "-3", "four", "4x", "4;2", ",4", "99999999999999"}) {
    EXPECT_EQ(0, engine::FirstThreadCount(invalid)) << invalid;
  }
  EXPECT_EQ(0, engine::FirstThreadCount(nullptr));
}

TEST(CoresTest, AvailableCoresHeedTheAffinity) {
  const int all = engine::AvailableCores();
  EXPECT_GE(all, 1);
  cpu_set_t before;
  ASSERT_EQ(0, sched_getaffinity(0, sizeof(before), &before));
  EXPECT_LE(all, CPU_COUNT(&before));
  // The affinity of one thread, which ends with it.
  int alone = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); ++cpu) {
      if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    }
    CHECK_EQ(0, sched_setaffinity(0, sizeof(one), &one));
    alone = engine::AvailableCores();
  }).join();
  EXPECT_EQ(1, alone);
}

// A directory that stands for /sys/fs/cgroup.
class CpuQuotaTest : public ::testing::Test {
 protected:
  CpuQuotaTest() : root_("/tmp/cgroup.XXXXXX") { CHECK(mkdtemp(&root_[0])); }
  ~CpuQuotaTest() override {
    CHECK_EQ(0, std::system(("rm -r " + root_).c_str()));
  }

  void Write(const std::string& file, const std::string& content) {
    for (size_t slash = file.find('/'); slash != std::string::npos;
         slash = file.find('/', slash + 1)) {
      mkdir((root_ + "/" + file.substr(0, slash)).c_str(), 0700);
    }
    std::ofstream(root_ + "/" + file) << content << "\n";
  }

  double Quota(const std::string& membership) const {
    return engine::CpuQuota(membership, root_);
  }

  const double none_ = std::numeric_limits<double>::infinity();
  std::string root_;
};

TEST_F(CpuQuotaTest, Version2) {
  Write("box/cpu.max", "150000 100000");
  EXPECT_EQ(1.5, Quota("0::/box\n"));
  Write("box/cpu.max", "max 100000");
  EXPECT_EQ(none_, Quota("0::/box\n"));
}

TEST_F(CpuQuotaTest, Version1) {
  Write("cpu,cpuacct/box/cpu.cfs_quota_us", "50000");
  Write("cpu,cpuacct/box/cpu.cfs_period_us", "100000");
  const std::string membership =
      "5:memory:/elsewhere\n4:cpu,cpuacct:/box\n3:cpuset:/\n0::/\n";
  EXPECT_EQ(0.5, Quota(membership));
  Write("cpu,cpuacct/box/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(none_, Quota(membership));
  // The controller alone; others whose names begin with "cpu" do not count.
  Write("cpu/box/cpu.cfs_quota_us", "200000");
  Write("cpu/box/cpu.cfs_period_us", "100000");
  EXPECT_EQ(2, Quota("1:cpu:/box\n"));
  EXPECT_EQ(none_, Quota("1:cpuacct:/box\n2:cpuset:/box\n"));
}

// A cgroup has no more than any of its ancestors.
TEST_F(CpuQuotaTest, Nested) {
  Write("a/b/c/cpu.max", "400000 100000");
  Write("a/b/cpu.max", "max 100000");
  Write("a/cpu.max", "300000 200000");
  EXPECT_EQ(1.5, Quota("0::/a/b/c\n"));
  Write("a/b/c/cpu.max", "100000 100000");
  EXPECT_EQ(1, Quota("0::/a/b/c\n"));
  EXPECT_EQ(1.5, Quota("0::/a/b\n"));
}

// The root is the container's own cgroup; the path is the host's.
TEST_F(CpuQuotaTest, Container) {
  Write("cpu.max", "250000 100000");
  EXPECT_EQ(2.5, Quota("0::/\n"));
  EXPECT_EQ(2.5, Quota("0::/docker/0123abcd\n"));
  EXPECT_EQ(2.5, Quota("0::/../other\n"));
}

TEST_F(CpuQuotaTest, WhatCannotBeReadIsNoQuota) {
  EXPECT_EQ(none_, Quota("0::/nowhere\n"));
  for (const char* content : {"", "many", "100000", "-5 100000", "100000 0",
                              "100000 often", "0 100000"}) {
    Write("box/cpu.max", content);
    EXPECT_EQ(none_, Quota("0::/box\n")) << content;
  }
  Write("cpu/box/cpu.cfs_quota_us", "100000");
  EXPECT_EQ(none_, Quota("1:cpu:/box\n"));
  Write("cpu.max", "100000 100000");
  for (const char* membership : {"", "\n", "garbage", "0:", "0::", "0::box"}) {
    EXPECT_EQ(none_, Quota(membership)) << membership;
  }
}

// ---- Memory -----------------------------------------------------------------

TEST(ScratchTest, WhatIsAliveIsNotShared) {
  const int kSize = 1000;
  const engine::Scratch<float> first(kSize);
  std::fill(first + 0, first + kSize, 1.0f);
  float* again;
  {
    const engine::Scratch<float> second(kSize);
    std::fill(second + 0, second + kSize, 2.0f);
    engine::ParallelFor(1, [&](int) {
      const engine::Scratch<float> third(10 * kSize);
      std::fill(third + 0, third + 10 * kSize, 3.0f);
    });
    EXPECT_EQ(kSize, std::count(second + 0, second + kSize, 2.0f));
    again = second;
  }
  EXPECT_EQ(kSize, std::count(first + 0, first + kSize, 1.0f));
  // Memory is kept for the next one.
  EXPECT_EQ(again, static_cast<float*>(engine::Scratch<float>(kSize)));
}

}  // namespace caffe
