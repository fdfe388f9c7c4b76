// The programs of programs.h, ranks as threads, on one node and on pretended ones.

#include "tests/runtime/session/programs.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace kolo {
namespace {

struct Placement {
  int ranks;
  const char* fake_nodes;
};

using ProgramAndPlacement = std::tuple<testing::SessionProgram, Placement>;

std::string name_of_case(const ::testing::TestParamInfo<ProgramAndPlacement>& info) {
  const auto& [program, placement] = info.param;
  std::string name = fmt::format("{}_{}", program.name, placement.ranks);
  if (*placement.fake_nodes) name += std::string("_on_") + placement.fake_nodes;
  std::ranges::replace(name, ',', '_');
  return name;
}

std::vector<Placement> placements() {
  if (sanitized) return {{3, ""}, {2, "1,1"}, {4, "1,2,1"}};
  return {{1, ""}, {2, ""}, {3, ""}, {4, ""}, {2, "1,1"}, {4, "3,1"}, {4, "1,2,1"}};
}

class Programs : public ::testing::TestWithParam<ProgramAndPlacement> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Programs,
                         ::testing::Combine(::testing::ValuesIn(testing::session_programs),
                                            ::testing::ValuesIn(placements())),
                         name_of_case);

TEST_P(Programs, Runs) {
  const auto& [program, placement] = GetParam();
  Config config = testing::test_config();
  config.fake_nodes = placement.fake_nodes;
  config.fusion_bytes = program.fusion_bytes;
  testing::run_ranks(placement.ranks, program.run, config);
}

TEST(Arena, IsNotStaged) {
  testing::run_ranks(3, [](Session& session) { testing::reduce_an_arena(session, false); });
}

TEST(Averages, OfIntegersAreExactOver49Ranks) {  // 49 * (1.0 / 49) is less than 1: times 1/n, truncated, gives 0
  testing::run_ranks(49, [](Session& session) {
    std::vector<std::int32_t> ones(100, 1), negative(3, session.rank() == 0 ? -51 : -1);
    session.all_reduce("ones", view(ones), {.op = ReduceOp::average});
    EXPECT_EQ(ones, std::vector<std::int32_t>(100, 1));
    session.all_reduce("negative", view(negative), {.op = ReduceOp::average});
    EXPECT_EQ(negative, std::vector<std::int32_t>(3, -2)) << "-99 / 49, truncated toward zero";
  });
}

/// A step of a sharded optimizer: two tensors of a kind share a bucket, so the steady state takes one agreement per
/// kind.
TEST(Fusion, OfEveryKind) {
  testing::run_ranks(3, [](Session& session) {
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

TEST(Mismatch, OfShapesNamesTheRanks) {
  testing::run_ranks(4, [](Session& session) {
    std::vector<float> grad(20);
    const Shape shape = session.rank() == 3 ? Shape{4, 4} : Shape{5, 4};
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(
          testing::error_text([&] { session.all_reduce("grad", view(grad.data(), shape)); }, ErrorCode::mismatch),
          "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[4,4]); "
          "submit the same shape on every rank");
      session.all_reduce("grad", view(grad.data(), Shape{5, 4}));  // the session survives
    }
  });
}

}  // namespace
}  // namespace kolo
