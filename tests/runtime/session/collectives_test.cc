// The collectives, ranks as threads.

#include "tests/runtime/session/collective_programs.h"

namespace kolo {
namespace {

using testing::run_ranks;

class CollectivesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, ::testing::Values(1, 2, 3, 4));

TEST_P(CollectivesTest, InTheWorld) {
  run_ranks(GetParam(), [](Session& session) { testing::run_collectives(session); });
}
TEST_P(CollectivesTest, InGroups) {
  run_ranks(GetParam(), testing::run_collectives_in_groups);
}

TEST(Collectives, WorkAcrossFakeNodes) {
  auto config = testing::test_config();
  config.fake_nodes = "1,2,1";
  run_ranks(
      4, [](Session& session) { testing::run_collectives(session); }, config);
  run_ranks(4, testing::run_collectives_in_groups, config);
}

/// A step of a sharded optimizer: two tensors of a kind share a bucket, so the steady state takes one agreement per
/// kind.
TEST(Collectives, OfEveryKindAreFused) {
  run_ranks(3, [](Session& session) {
    const auto step = [&] {
      std::vector<std::vector<float>> whole(8, std::vector<float>(30, 1)), part(8, std::vector<float>(10));
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const std::string name = std::to_string(i);
        handles.push_back(session.reduce_scatter_async("rs" + name, view(whole[i]), view(part[i])));
      }
      for (Handle& handle : handles) handle.wait();
      handles.clear();
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const std::string name = std::to_string(i);
        handles.push_back(session.all_gather_async("ag" + name, view(part[i]), view(whole[i])));
      }
      for (Handle& handle : handles) handle.wait();
      for (const auto& values : whole) EXPECT_EQ(values, std::vector<float>(30, 3));
    };
    for (int i = 0; i < 4; ++i) step();
    session.barrier();
    const SessionStats before = session.stats();
    for (int i = 0; i < 10; ++i) step();
    const SessionStats after = session.stats();
    session.barrier();
    EXPECT_EQ(after.tensors - before.tensors, 160u);
    EXPECT_EQ(after.buckets - before.buckets, 20u);
    EXPECT_EQ(after.full_announcements, before.full_announcements);
  });
}

}  // namespace
}  // namespace kolo
