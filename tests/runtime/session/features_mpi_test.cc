// What goes beyond equal blocks and full attendance, ranks as processes.

#include "tests/runtime/session/block_programs.h"
#include "tests/runtime/session/join_programs.h"
#include "tests/runtime/session/pair_programs.h"
#include "tests/runtime/session/together_programs.h"

namespace kolo {
namespace {

Config config_with(std::int64_t fusion_bytes = 64 << 20) {
  Config config = testing::test_config();
  config.fusion_bytes = fusion_bytes;
  return config;
}

TEST(FeaturesMpi, UnevenBlocks) {
  Session session(config_with());
  testing::run_uneven_blocks(session);
}
TEST(FeaturesMpi, Joins) {
  Session session(config_with());
  testing::run_joins(session);
  testing::run_uneven_epochs(session);
  testing::join_in_a_group(session);
}
TEST(FeaturesMpi, Pairs) {
  Session session(config_with());
  testing::run_pairs(session);
}
/// What a session's pairs said last does not reach the next one.
TEST(FeaturesMpi, PairsOfSessionsInARow) {
  for (int i = 0; i < 4; ++i) {
    Session session(config_with());
    testing::pass_around(session);
  }
}
TEST(FeaturesMpi, Together) {
  Session session(config_with());
  testing::reduce_together(session);
  testing::refuse_together(session);
  testing::exchange_objects(session);
  testing::keep_monitored_barriers(session);
}
TEST(FeaturesMpi, Arena) {
  Config config = config_with();
  config.backend = "mpi";
  Session session(config);
  testing::reduce_an_arena(session, true);
}
TEST(FeaturesMpi, FirstBroadcastsAreFused) {
  for (const std::int64_t fusion_bytes : {std::int64_t{64} << 20, std::int64_t{100'000}}) {
    Session session(config_with(fusion_bytes));
    testing::broadcast_for_the_first_time(session, fusion_bytes);
  }
}
}  // namespace
}  // namespace kolo
