// The main path, ranks as threads: results in closed form, steps that repeat and change, errors, leaving.

#include <kolo/session.h>

#include <chrono>
#include <thread>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;
using testing::run_ranks;

class SessionTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SessionTest, ::testing::Values(1, 2, 3, 4));

TEST_P(SessionTest, AveragesOverRanks) {
  run_ranks(GetParam(), [](Session& session) {
    for (int step = 0; step < 10; ++step) {
      std::vector<float> grad(1000, static_cast<float>(session.rank()));
      session.all_reduce("grad", view(grad), {.op = ReduceOp::average});
      const float mean = static_cast<float>(session.size() - 1) / 2;  // (0+1+…+(n-1)) / n
      for (float g : grad) ASSERT_FLOAT_EQ(g, mean);
    }
  });
}

TEST_P(SessionTest, ManyTensorsPerStepKeepTheirValues) {
  run_ranks(GetParam(), [](Session& session) {
    const int tensors = 50, steps = 8;
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<float>> grads;
      std::vector<Handle> handles;
      for (int i = 0; i < tensors; ++i) {
        grads.emplace_back(static_cast<std::size_t>(1 + i * 7), static_cast<float>((session.rank() + 1) * (i + step)));
      }
      for (int i = 0; i < tensors; ++i) {
        handles.push_back(
            session.all_reduce_async("grad" + std::to_string(i), view(grads[static_cast<std::size_t>(i)])));
      }
      for (Handle& handle : handles) handle.wait();
      const int n = session.size();
      for (int i = 0; i < tensors; ++i) {
        for (float g : grads[static_cast<std::size_t>(i)])
          ASSERT_FLOAT_EQ(g, static_cast<float>(n * (n + 1) / 2 * (i + step)));
      }
    }
  });
}

TEST_P(SessionTest, BroadcastsFromAnyRoot) {
  run_ranks(GetParam(), [](Session& session) {
    for (int root = 0; root < session.size(); ++root) {
      std::vector<std::int64_t> values(17, session.rank() * 100);
      session.broadcast("weights", view(values), {.root = root});
      for (auto value : values) ASSERT_EQ(value, root * 100);
    }
  });
}

TEST_P(SessionTest, BarrierWaitsForEverybody) {
  std::atomic<int> arrived{0};
  run_ranks(GetParam(), [&](Session& session) {
    for (int round = 1; round <= 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(session.rank()));
      ++arrived;
      session.barrier();
      ASSERT_GE(arrived.load(), round * session.size());
      session.barrier();
    }
  });
}

TEST_P(SessionTest, SessionsFollowEachOther) {
  for (int round = 0; round < 3; ++round) {
    run_ranks(GetParam(), [](Session& session) {
      float one = 1;
      session.all_reduce("one", view_scalar(one));
      ASSERT_EQ(one, static_cast<float>(session.size()));
    });
  }
}

TEST(SessionErrors, MismatchedShapesNameTheRanks) {
  run_ranks(4, [](Session& session) {
    std::vector<float> grad(20);
    const Shape shape = session.rank() == 3 ? Shape{4, 4} : Shape{5, 4};
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(
          error_text([&] { session.all_reduce("grad", view(grad.data(), shape)); }, ErrorCode::mismatch),
          "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[4,4]); "
          "submit the same shape on every rank");
      session.all_reduce("grad", view(grad.data(), Shape{5, 4}));  // the session survives
    }
  });
}

}  // namespace
}  // namespace kolo
