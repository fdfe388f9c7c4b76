// Groups, ranks as threads.

#include "tests/runtime/session/group_programs.h"

namespace kolo {
namespace {

class GroupsTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GroupsTest, ::testing::Values(1, 2, 3, 4));

TEST_P(GroupsTest, ReduceAmongMembers) {
  testing::run_ranks(GetParam(), testing::reduce_in_groups);
}
TEST_P(GroupsTest, PairsInAnyOrder) {
  testing::run_ranks(GetParam(), testing::reduce_in_pairs);
}
TEST_P(GroupsTest, ASleeperDelaysItsOwnGroupOnly) {
  testing::run_ranks(GetParam(), testing::sleep_in_one_group);
}
TEST_P(GroupsTest, SplitByColor) {
  testing::run_ranks(GetParam(), testing::split_by_color);
}
TEST_P(GroupsTest, MisuseIsANamedErrorOnEveryRank) {
  testing::run_ranks(GetParam(), testing::misuse_groups);
}

TEST(Groups, WorkAcrossFakeNodes) {
  auto config = testing::test_config();
  config.fake_nodes = "1,2,1";
  testing::run_ranks(4, testing::reduce_in_groups, config);
  testing::run_ranks(4, testing::reduce_in_pairs, config);
  testing::run_ranks(4, testing::reduce_with_the_last, config);
}

}  // namespace
}  // namespace kolo
