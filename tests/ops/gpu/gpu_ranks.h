#pragma once

#include <gtest/gtest.h>
#include <kolo/session.h>

#include <array>
#include <string>

#include "tests/support/environment.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/on_gpu.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

/// Tests of ranks with fake GPUs, over the backend that is their parameter.
struct GpuRanks : ::testing::TestWithParam<std::string> {
  GpuRanks() {
    set_fake_nccl({.in_progress = 80, .seed = 3});
    clear_nccl_log();
    config = test_config();
    config.nccl_blocking = GetParam() == "blocking";
    config.gpu_backend = config.nccl_blocking ? "nccl" : GetParam();
    config.gpu_pack_bytes = 1 << 20;
    config.report = [](const std::string&) {};
  }
  Config config;
};

/// Waits for a send, a receive of 64 elements from rank `before` into `in`, and a sum of ones on three ranks: each is
/// right, or fails with the backend's error if it may. Returns how many have failed.
inline int wait_for_pairs_and_sum(std::array<Handle, 3>& handles, OnGpu& in, int before, OnGpu& sum, bool may_fail,
                                  unsigned seed) {
  int errors = 0;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    try {
      handles[i].wait();
      if (i == 1) {
        EXPECT_EQ(in.read(), all(64, static_cast<float>(before))) << "seed " << seed;
      } else if (i == 2) {
        EXPECT_EQ(sum.read(), all(64, 3)) << "seed " << seed;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::backend) << error.what();
      EXPECT_TRUE(may_fail) << error.what() << ", handle " << i << ", seed " << seed;
      ++errors;
    }
  }
  return errors;
}

}  // namespace kolo::testing
