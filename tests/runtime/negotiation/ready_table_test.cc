// What a position in the tree knows of its subtree: completeness, conflicts, announcements taken back.

#include "runtime/negotiation/ready_table.h"

#include <gtest/gtest.h>

#include "tests/runtime/negotiation/negotiation_simulation.h"

namespace kolo {
namespace {

using testing::sum_of;
using Retraction = ReadyTable::Retraction;
using Conflicts = std::vector<Conflict>;

/// A position with two neighbours below: child 0 is rank 0, child 1 stands for ranks 1-2, child 2 for rank 3.
class Position {
 public:
  Position() : table({{0}, {1, 2}, {3}}) {
    for (const char* name : {"a", "b", "c"}) plan.define(name, sum_of(5));  // buckets 0, 1, 2
  }
  Conflicts announce(int child, const std::string& name, std::int64_t elements) {
    return table.announce(
        child, {.name = name, .variants = {{sum_of(elements), std::nullopt, ranks_of(child)}}, .known = plan.epoch()},
        plan);
  }
  Conflicts ready(int child, BucketId bucket) { return table.ready(child, {bucket, {}}, plan); }
  Retraction retract(int child, BucketId bucket) { return table.retract(child, {bucket, ""}); }
  Retraction retract(int child, const std::string& name) { return table.retract(child, {std::nullopt, name}); }
  static RankSet ranks_of(int child) { return child == 0 ? RankSet{0} : child == 1 ? RankSet{1, 2} : RankSet{3}; }

  PlanCache plan;
  ReadyTable table;
};

TEST(ReadyTableTest, ABucketIsCompleteWhenEveryChildHasAnnouncedIt) {
  Position position;
  position.ready(1, 0);
  position.ready(1, 0);  // twice counts once
  position.ready(0, 0);
  EXPECT_TRUE(position.table.take().ready.empty());
  position.ready(2, 0);
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}}));
  EXPECT_TRUE(position.table.take().ready.empty()) << "passed on once";
  EXPECT_FALSE(position.table.idle());
  EXPECT_TRUE(position.table.run(0, true));
  EXPECT_TRUE(position.table.idle());
}

TEST(ReadyTableTest, NobodyIsExcusedFromAVote) {
  Position position;
  position.table.joined(RankSet{3});
  position.ready(0, 0);
  position.ready(1, 0);
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}}));
  EXPECT_FALSE(position.table.run(0, false));
  EXPECT_TRUE(position.table.votes(0));
  position.ready(0, 0);
  position.ready(1, 0);
  EXPECT_TRUE(position.table.take().ready.empty()) << "without the rank that has joined";
  position.ready(2, 0);
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}}));
  EXPECT_TRUE(position.table.run(0, false));
  EXPECT_TRUE(position.table.idle());
}

TEST(ReadyTableTest, ANameIsCompleteWithTheVariantsOfAllChildren) {
  Position position;
  position.announce(2, "new", 5);
  position.announce(0, "new", 5);
  EXPECT_TRUE(position.table.take().announced.empty());
  position.announce(1, "new", 6);
  const auto announced = position.table.take().announced;
  ASSERT_EQ(announced.size(), 1u);
  EXPECT_EQ(announced[0].name, "new");
  ASSERT_EQ(announced[0].variants.size(), 2u);
  EXPECT_EQ(announced[0].variants[0].ranks, (RankSet{0, 3}));
  EXPECT_EQ(announced[0].variants[1].ranks, (RankSet{1, 2}));
  position.table.voided("new");
  EXPECT_TRUE(position.table.idle());
}

TEST(ReadyTableTest, ANameInFullAndByNumberIsAConflictWhicheverComesFirst) {
  Position position;
  EXPECT_EQ(position.ready(0, 0), Conflicts{});
  EXPECT_EQ(position.announce(1, "a", 7), Conflicts{{"a"}});
  EXPECT_EQ(position.announce(1, "b", 7), Conflicts{});
  EXPECT_EQ(position.ready(2, 1), Conflicts{{"b"}});
  position.plan.regroup({{{0, 1, 2}}});  // bucket 3
  position.table.retired({0, 1, 2});
  EXPECT_EQ(position.ready(0, 3), (Conflicts{{"a"}, {"b"}}));
  EXPECT_EQ(position.announce(2, "c", 5), Conflicts{{"c"}}) << "of the same signature, too";
  EXPECT_TRUE(position.table.quiet());
}

TEST(ReadyTableTest, TwoNumbersOfANameAreAConflict) {
  Position position;
  position.plan.define("a", sum_of(9));  // bucket 3
  EXPECT_EQ(position.ready(0, 0), Conflicts{});
  EXPECT_EQ(position.ready(1, 3), Conflicts{{"a"}});
  EXPECT_EQ(position.retract(1, 3u), Retraction::done);
  EXPECT_EQ(position.ready(1, 0), Conflicts{});
  EXPECT_EQ(position.ready(2, 0), Conflicts{});
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}}));
}

TEST(ReadyTableTest, AVoteThatNobodyHasTakenPartInIsInNoConflict) {
  Position position;
  for (int child = 0; child < 3; ++child) position.ready(child, 0);
  EXPECT_FALSE(position.table.run(0, false));
  EXPECT_EQ(position.announce(1, "a", 7), Conflicts{});
}

TEST(ReadyTableTest, WhatIsForgottenIsAnnouncedInFullByAll) {
  Position position;
  position.ready(0, 0);
  position.announce(1, "a", 7);
  position.announce(1, "b", 7);
  std::vector<std::string> names;
  position.table.all_voided();
  position.table.retired(position.plan.forget({{0}}, names));
  EXPECT_TRUE(position.table.idle());
  EXPECT_EQ(position.ready(2, 0), Conflicts{}) << "was on its way";
  EXPECT_EQ(position.announce(0, "a", 5), Conflicts{});
  EXPECT_EQ(position.announce(1, "a", 7), Conflicts{});
  EXPECT_EQ(position.announce(2, "a", 5), Conflicts{});
  const auto announced = position.table.take().announced;
  ASSERT_EQ(announced.size(), 1u);
  ASSERT_EQ(announced[0].variants.size(), 2u);
  EXPECT_EQ(announced[0].variants[0].ranks, (RankSet{0, 3}));
}

TEST(ReadyTableTest, WhatCannotRunIsSaidOnceForAllRanksThatSaySo) {
  Position position;
  const Failure failure{ErrorCode::backend, "no memory"};
  position.table.ready(0, {0, {{0, {0}, {}, failure}}}, position.plan);
  position.table.ready(1, {0, {{0, {1}, {}, Failure{ErrorCode::backend, "none"}}, {0, {2}, {}, failure}}},
                       position.plan);
  position.ready(2, 0);
  const auto ready = position.table.take().ready;
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_EQ(ready[0].sizes.size(), 2u);
  EXPECT_EQ(ready[0].sizes[0], (SizesOfRanks{0, {0, 2}, {}, failure}));
}

TEST(ReadyTableTest, AnnouncementsOfRetiredBucketsCountNowhere) {
  Position position;
  position.ready(0, 0);
  position.ready(1, 0);
  const auto retired = position.plan.regroup({{{0, 1}}});
  position.table.retired(retired);
  position.ready(2, 0);  // was on its way
  EXPECT_TRUE(position.table.take().ready.empty());
  EXPECT_TRUE(position.table.idle());
}

TEST(ReadyTableTest, RetractingWhatIsIncompleteForgetsIt) {
  Position position;
  position.ready(0, 0);
  position.ready(1, 0);
  EXPECT_EQ(position.retract(1, 0u), Retraction::done);
  EXPECT_EQ(position.retract(1, 0u), Retraction::ignored) << "taken back already";
  position.ready(2, 0);
  EXPECT_TRUE(position.table.take().ready.empty());
  position.ready(1, 0);
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}}));

  position.announce(1, "new", 5);
  EXPECT_EQ(position.retract(1, "new"), Retraction::done);
  position.announce(0, "new", 6);
  position.announce(2, "new", 6);
  EXPECT_TRUE(position.table.take().announced.empty());
  position.announce(1, "new", 6);
  const auto announced = position.table.take().announced;
  ASSERT_EQ(announced.size(), 1u);
  EXPECT_EQ(announced[0].variants.size(), 1u) << "the variant that was taken back is forgotten";
}

TEST(ReadyTableTest, RetractingTheOnlyAnnouncementLeavesNothing) {
  Position position;
  position.ready(2, 1);
  EXPECT_EQ(position.retract(2, 1u), Retraction::done);
  position.announce(2, "new", 5);
  EXPECT_EQ(position.retract(2, "new"), Retraction::done);
  EXPECT_TRUE(position.table.idle());
}

TEST(ReadyTableTest, RetractingWhatWasNeverAnnouncedIsIgnored) {
  Position position;
  EXPECT_EQ(position.retract(0, 0u), Retraction::ignored);
  EXPECT_EQ(position.retract(0, 99u), Retraction::ignored);
  EXPECT_EQ(position.retract(0, "new"), Retraction::ignored);
  position.ready(0, 0);
  position.announce(0, "new", 5);
  EXPECT_EQ(position.retract(1, 0u), Retraction::ignored) << "of another child";
  EXPECT_EQ(position.retract(1, "new"), Retraction::ignored);
}

TEST(ReadyTableTest, RetractingWhatIsKnownAboveAsksThereAndAnswersAllWhoAsked) {
  Position position;
  for (int child = 0; child < 3; ++child) position.ready(child, 0);
  (void)position.table.take();
  EXPECT_EQ(position.retract(1, 0u), Retraction::passed_on);
  EXPECT_EQ(position.retract(2, 0u), Retraction::passed_on);
  EXPECT_EQ(position.table.retracted({BucketId{0}, ""}), (std::vector{1, 2}));
  position.ready(1, 0);
  EXPECT_TRUE(position.table.take().ready.empty());
  position.ready(2, 0);
  EXPECT_EQ(position.table.take().ready, (std::vector{Ready{0, {}}})) << "complete again";
}

}  // namespace
}  // namespace kolo
