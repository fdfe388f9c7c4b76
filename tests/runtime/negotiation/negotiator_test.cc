// Single exchanges between negotiators, message by message. Random ones are in negotiation_test.

#include "runtime/negotiation/negotiator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/runtime/negotiation/negotiation_simulation.h"

namespace kolo {
namespace {

using testing::nodes_of;
using testing::sum_of;
using testing::sum_on_gpu;

/// Negotiators of some ranks; messages move when deliver() is called, several local events may come before that.
class Ranks {
 public:
  explicit Ranks(const Topology& topology) {
    std::vector<int> everybody(static_cast<std::size_t>(topology.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    for (int rank : everybody) {
      auto info = std::make_shared<GroupInfo>();
      info->name = "world";
      info->ranks = everybody;
      info->rank = rank;
      groups_.push_back(info);
      negotiators_.push_back(std::make_unique<Negotiator>(info, tree_position(topology, everybody, rank), 1 << 20));
    }
  }

  Negotiator& operator[](int rank) { return *negotiators_[static_cast<std::size_t>(rank)]; }

  SubmissionPtr submit(int rank, const std::string& name, const Signature& signature = sum_of(5)) {
    Request request;
    request.name = name;
    request.group = groups_[static_cast<std::size_t>(rank)];
    request.signature = signature;
    auto submission = std::make_shared<Submission>(std::move(request));
    submission->queued.sequence = ++sequence_;
    (*this)[rank].submit(submission);
    (*this)[rank].end_run();
    return submission;
  }

  /// Moves messages until there are none; collects each rank's decisions.
  void deliver() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(negotiators_.size()); ++rank) {
        (*this)[rank].decide();
        (*this)[rank].send([&](int to, Direction direction, std::span<const std::byte> bytes) {
          moved = true;
          Reader reader(bytes);
          if (direction == Direction::to_parent) {
            (*this)[to].receive_from_child(rank, reader);
          } else {
            (*this)[to].receive_from_parent(reader);
          }
        });
        const Decisions decisions = (*this)[rank].take();
        for (const auto& next : decisions.run) {
          if (rank == 0) buckets.emplace_back();
          for (const auto& member : std::get<AgreedBucket>(next).members) {
            if (rank == 0) buckets.back() += member->request.name;
          }
          for (const auto& member : std::get<AgreedBucket>(next).members)
            ran.push_back(std::to_string(rank) + member->request.name);
        }
        for (const auto& member : decisions.withdrawn) withdrawn.push_back(std::to_string(rank) + member->request.name);
        for (const auto& [member, failure] : decisions.failed)
          failed.push_back(std::to_string(rank) + member->request.name + ": " + failure.message);
      }
    }
  }
  void forget() {
    ran.clear();
    withdrawn.clear();
    failed.clear();
    buckets.clear();
  }

  /// The program waits.
  void wait(int rank, const SubmissionPtr& submission) {
    (*this)[rank].fence();
    (*this)[rank].look(submission, ++sequence_);
  }

  std::vector<std::string> ran, withdrawn, failed;
  std::vector<std::string> buckets;  // the names in each, on rank 0

 private:
  std::vector<std::shared_ptr<const GroupInfo>> groups_;
  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::uint64_t sequence_ = 0;
};

using Texts = std::vector<std::string>;

TEST(NegotiatorTest, WhatIsTakenBackAtOnceIsAnnouncedFirst) {
  for (const auto& nodes : std::vector<std::vector<int>>{{2}, {1, 1}, {1, 2}}) {
    Ranks ranks(nodes_of(nodes));
    const int last = static_cast<int>(std::accumulate(nodes.begin(), nodes.end(), 0)) - 1;
    for (int round = 0; round < 2; ++round) {  // by name, then by number
      const auto submission = ranks.submit(last, "x");
      ranks[last].withdraw(submission);  // before anything was sent
      ranks.deliver();
      EXPECT_EQ(ranks.withdrawn, Texts{std::to_string(last) + "x"});
      EXPECT_TRUE(ranks.ran.empty());
      for (int rank = 0; rank <= last; ++rank) (void)ranks.submit(rank, "x");
      ranks.deliver();
      EXPECT_EQ(ranks.ran.size(), static_cast<std::size_t>(last + 1));
      ranks.forget();
    }
  }
}

TEST(NegotiatorTest, WithdrawnBelowAPositionThatHasPassedItOn) {
  Ranks ranks(nodes_of({1, 2}));  // 2 below 1 below 0
  (void)ranks.submit(1, "x");
  const auto submission = ranks.submit(2, "x");
  ranks.deliver();
  ranks[2].withdraw(submission);
  ranks.deliver();
  EXPECT_EQ(ranks.withdrawn, Texts{"2x"});
  (void)ranks.submit(0, "x");
  ranks.deliver();
  EXPECT_TRUE(ranks.ran.empty());
  (void)ranks.submit(2, "x");
  ranks.deliver();
  std::sort(ranks.ran.begin(), ranks.ran.end());
  EXPECT_EQ(ranks.ran, (Texts{"0x", "1x", "2x"}));
}

TEST(NegotiatorTest, NothingRunsAfterADeparture) {
  Ranks ranks(nodes_of({3}));
  for (int rank = 0; rank < 3; ++rank) (void)ranks.submit(rank, "x");
  ranks.deliver();
  ranks.forget();
  (void)ranks.submit(0, "x");
  (void)ranks.submit(1, "x");
  ranks[1].leave(false);
  Texts late;
  ranks[1].decide();
  ranks[1].send([&](int, Direction, std::span<const std::byte> bytes) {
    Reader reader(bytes);
    ranks[0].receive_from_child(1, reader);  // rank 0 knows, and rank 2 does not yet
  });
  (void)ranks.submit(2, "x");
  ranks[2].decide();
  ranks[2].send([&](int, Direction, std::span<const std::byte> bytes) {
    Reader reader(bytes);
    ranks[0].receive_from_child(2, reader);
  });
  ranks.deliver();
  EXPECT_TRUE(ranks.ran.empty());
  EXPECT_EQ(ranks.failed.size(), 3u);
  for (const auto& text : ranks.failed) {
    EXPECT_EQ(
        text.substr(1),
        "x: all_reduce 'x' in group world: rank 1 closed the session (the operation needs every rank of the group); "
        "close sessions when all ranks are done");
  }
}

TEST(NegotiatorTest, TheFirstBreakdownDecides) {
  Ranks ranks(nodes_of({3}));
  (void)ranks.submit(0, "x");
  ranks[1].fail_group({ErrorCode::backend, "first"});
  ranks.deliver();
  ranks[2].fail_group({ErrorCode::backend, "second"});
  ranks.deliver();
  (void)ranks.submit(0, "y");
  ranks.deliver();
  EXPECT_EQ(ranks.failed, (Texts{"0x: first", "0y: first"}));
}

/// Two ranks that have learned a bucket of two tensors on devices.
class DeviceBuckets : public ::testing::Test {
 protected:
  DeviceBuckets() {
    step();
    EXPECT_EQ(ranks.buckets, (Texts{"a", "b"})) << "what is new runs alone";
    step();
    EXPECT_EQ(ranks.buckets, Texts{"ab"});
  }
  SubmissionPtr submit(int rank, const std::string& name) { return ranks.submit(rank, name, sum_on_gpu(5)); }
  void step() {
    ranks.forget();
    std::vector<std::pair<int, SubmissionPtr>> all;
    for (int rank : {0, 1}) {
      for (const char* name : {"a", "b"}) all.emplace_back(rank, submit(rank, name));
    }
    for (const auto& [rank, submission] : all) ranks.wait(rank, submission);
    ranks.deliver();
    for (const auto& [rank, submission] : all) submission->completion.done.set();
  }
  Ranks ranks{nodes_of({2})};
};

TEST_F(DeviceBuckets, AreNotChangedByAnyTimer) {
  ranks.forget();
  const auto first = submit(0, "a");
  (void)submit(1, "a");
  const auto second = submit(1, "b");
  ranks.wait(1, second);
  for (int turn = 0; turn < 3; ++turn) {  // whatever takes long
    for (int rank : {0, 1}) {
      ranks[rank].end_run();
      ranks[rank].flush_all();
      ranks[rank].ask_for_parts();
    }
    ranks.deliver();
  }
  EXPECT_TRUE(ranks.buckets.empty()) << "the program on rank 0 may be about to go on";
  (void)submit(0, "b");
  ranks.deliver();
  EXPECT_EQ(ranks.buckets, Texts{"ab"});
  ranks.wait(0, first);
}

TEST_F(DeviceBuckets, EndWhereAnyProgramWaits) {
  for (int waits : {0, 1}) {
    step();
    ranks.forget();
    std::vector<std::pair<int, SubmissionPtr>> all;
    for (const char* name : {"a", "b"}) {
      for (int rank : {0, 1}) all.emplace_back(rank, submit(rank, name));
      if (std::string(name) == "a") ranks[waits].fence();  // for something else, maybe of another group
      if (waits == 1) ranks.deliver();                     // now or later
    }
    ranks.deliver();
    EXPECT_EQ(ranks.buckets, (Texts{"a", "b"})) << waits;
    for (const auto& [rank, submission] : all) ranks.wait(rank, submission);
    step();
    EXPECT_EQ(ranks.buckets, (Texts{"a", "b"})) << "it stays so";
    for (int run = 0; run < 8; ++run) step();
    EXPECT_EQ(ranks.buckets, Texts{"ab"}) << "and is tried again after some runs";
  }
}

/// A program that waits for another rank by other means than kolo.
TEST_F(DeviceBuckets, OfWhichAProgramKeepsAPartForLongRunAloneFromThenOn) {
  ranks.forget();
  const auto first = submit(0, "a");
  ranks.deliver();
  EXPECT_FALSE(ranks[0].keeps_parts()) << "nobody waits for it";
  const auto other = submit(1, "a");
  const auto second = submit(1, "b");
  ranks.wait(1, other);
  ranks[1].ask_for_parts();
  ranks.deliver();
  EXPECT_TRUE(ranks[0].keeps_parts());
  EXPECT_FALSE(ranks[1].keeps_parts()) << "it has all of it";
  ranks[0].give_parts();
  ranks.deliver();
  EXPECT_EQ(ranks.buckets, Texts{"a"});
  EXPECT_FALSE(ranks[0].keeps_parts());
  const auto last = submit(0, "b");
  ranks.deliver();
  EXPECT_EQ(ranks.buckets, (Texts{"a", "b"}));
  for (const auto& submission : {first, last}) ranks.wait(0, submission);
  ranks.wait(1, second);
  for (int run = 0; run < 20; ++run) step();
  EXPECT_EQ(ranks.buckets, (Texts{"a", "b"})) << "else it would wait as long again";
}

}  // namespace
}  // namespace kolo
