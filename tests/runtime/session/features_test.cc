// What goes beyond equal blocks and full attendance, ranks as threads: blocks of any size, joins, pairs, tensors
// together.

#include "tests/runtime/session/block_programs.h"
#include "tests/runtime/session/join_programs.h"
#include "tests/runtime/session/pair_programs.h"
#include "tests/runtime/session/together_programs.h"

namespace kolo {
namespace {

using testing::run_ranks;

struct Placement {
  int ranks;
  const char* fake_nodes;
};

class FeaturesTest : public ::testing::TestWithParam<Placement> {
 protected:
  void run(const std::function<void(Session&)>& program, std::int64_t fusion_bytes = 64 << 20) {
    Config config = testing::test_config();
    config.fake_nodes = GetParam().fake_nodes;
    config.fusion_bytes = fusion_bytes;
    run_ranks(GetParam().ranks, program, config);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, FeaturesTest,
                         ::testing::Values(Placement{1, ""}, Placement{2, ""}, Placement{3, ""}, Placement{4, ""},
                                           Placement{2, "1,1"}, Placement{4, "3,1"}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + (*info.param.fake_nodes ? "_on_nodes" : "");
                         });

TEST_P(FeaturesTest, UnevenBlocks) {
  run(testing::run_uneven_blocks);
}
TEST_P(FeaturesTest, Joins) {
  run(testing::run_joins);
}
TEST_P(FeaturesTest, JoinsUnfused) {
  run(testing::run_joins, 1);
}
TEST_P(FeaturesTest, UnevenEpochs) {
  run(testing::run_uneven_epochs);
}
TEST_P(FeaturesTest, JoinInAGroup) {
  run(testing::join_in_a_group);
}
TEST_P(FeaturesTest, Pairs) {
  run(testing::run_pairs);
}
TEST_P(FeaturesTest, Together) {
  run(testing::reduce_together);
}
TEST_P(FeaturesTest, TogetherOrNotAtAll) {
  run(testing::refuse_together);
}
TEST_P(FeaturesTest, Objects) {
  run(testing::exchange_objects);
}
TEST_P(FeaturesTest, MonitoredBarriers) {
  run(testing::keep_monitored_barriers);
}
TEST_P(FeaturesTest, Arena) {
  run([](Session& session) { testing::reduce_an_arena(session, false); });
}
TEST_P(FeaturesTest, FirstBroadcastsAreFused) {
  for (const std::int64_t fusion_bytes : {std::int64_t{64} << 20, std::int64_t{100'000}}) {
    run([&](Session& session) { testing::broadcast_for_the_first_time(session, fusion_bytes); }, fusion_bytes);
  }
}

}  // namespace
}  // namespace kolo
