// adasum over the local backend and through sessions, ranks as threads.

#include "ops/adasum/adasum.h"

#include "ops/local/backend.h"
#include "tests/runtime/session/adasum_programs.h"

namespace kolo {
namespace {

using testing::AdasumTensors;

class AdasumTest : public ::testing::TestWithParam<int> {
 protected:
  void run_backends(void (*program)(Backend& backend, int ranks, int rank)) const {
    const int ranks = GetParam();
    const auto backends = local_backends(ranks, {});
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { program(*backends[static_cast<std::size_t>(rank)], ranks, rank); });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, AdasumTest, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(AdasumTest, OfBuckets) {
  run_backends(testing::run_adasum_buckets);
}
TEST_P(AdasumTest, FusedAndNot) {
  run_backends(testing::run_adasum_fused_and_not);
}
TEST_P(AdasumTest, AmongOthers) {
  run_backends(testing::run_adasum_among_others);
}
TEST_P(AdasumTest, InSessions) {
  testing::run_ranks(GetParam(), testing::run_adasum_session);
}

TEST(Adasum, IsServedForFloatsByAllReduceOnly) {
  const auto backends = local_backends(1, {});
  const Backend& backend = *backends[0];
  for (const DType dtype : all_types) {
    const Signature signature{.op = ReduceOp::adasum, .dtype = dtype};
    EXPECT_EQ(serves_adasum(backend, signature), is_floating_point(dtype)) << to_string(dtype);
    EXPECT_FALSE(backend.supports(signature));
  }
  EXPECT_FALSE(serves_adasum(backend, {.op = ReduceOp::sum}));
  EXPECT_FALSE(serves_adasum(backend, {.kind = OpKind::reduce_scatter, .op = ReduceOp::adasum}));
}

/// Steps both of two ranks in turn, `steps` times.
void step_in_turn(Operation& first, Operation& second, int steps) {
  for (int i = 0; i < steps; ++i) {
    (void)first.step();
    (void)second.step();
  }
}

// At every stage one of two ranks gives up, and frees its memory at once.
TEST(Adasum, OneThatDiesUnfinishedAbortsItsPeers) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (int steps = 0; steps < 8; ++steps) {
      with_type(dtype, [&]<class T>() {
        if constexpr (std::is_floating_point_v<T>) {
          const auto backends = local_backends(2, {});
          AdasumTensors<T> tensors(0, {100'000});
          auto leavers = std::make_unique<AdasumTensors<T>>(1, std::vector<std::size_t>{100'000});
          const auto survivor = start_adasum(*backends[0], {testing::adasum_of_type<T>(), tensors.tensors(true)}, 2, 0);
          auto leaver = start_adasum(*backends[1], {testing::adasum_of_type<T>(), leavers->tensors(true)}, 2, 1);
          step_in_turn(*survivor, *leaver, steps);
          const bool complete = leaver->step();
          leaver.reset();
          leavers.reset();
          if (complete) return;
          EXPECT_EQ(testing::error_text([&] { testing::finish(*survivor); }, ErrorCode::aborted),
                    "a rank of the group left before the operation was complete");
        }
      });
    }
  }
}

}  // namespace
}  // namespace kolo
