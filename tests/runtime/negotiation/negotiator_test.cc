// Single exchanges between negotiators, message by message. Random ones are in negotiation_test.

#include "runtime/negotiation/negotiator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/runtime/negotiation/negotiation_simulation.h"

namespace kolo {
namespace {

using testing::nodes_of;
using testing::sum_of;

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

  SubmissionPtr make(int rank, const std::string& name, const Signature& signature,
                     std::optional<Failure> invalid = std::nullopt) {
    Request request;
    request.invalid = std::move(invalid);
    request.name = name;
    request.group = groups_[static_cast<std::size_t>(rank)];
    request.signature = signature;
    request.timeout_seconds = 1;
    auto submission = std::make_shared<Submission>(std::move(request));
    submission->queued.sequence = ++sequence_;
    return submission;
  }
  SubmissionPtr submit(int rank, const std::string& name, std::int64_t elements = 5,
                       std::optional<Failure> invalid = std::nullopt) {
    const auto submission = make(rank, name, sum_of(elements), std::move(invalid));
    (*this)[rank].submit(submission);
    if (runs_end) (*this)[rank].end_run();
    return submission;
  }
  void submit_everywhere(const std::string& name, std::int64_t elements = 5) {
    for (int rank = 0; rank < size(); ++rank) (void)submit(rank, name, elements);
  }
  /// Names are planned into one bucket, and have run.
  void fuse(const std::vector<std::string>& names) {
    run(names);
    forget();
  }
  /// All ranks submit these before they wait.
  void run(const std::vector<std::string>& names) {
    runs_end = false;
    for (const std::string& name : names) submit_everywhere(name);
    runs_end = true;
    for (auto& negotiator : negotiators_) negotiator->end_run();
    deliver();
  }
  void wait(int rank, const SubmissionPtr& submission) { (*this)[rank].flush(submission, ++sequence_); }
  int size() const { return static_cast<int>(negotiators_.size()); }
  std::uint64_t full_announcements() const {
    std::uint64_t sum = 0;
    for (const auto& negotiator : negotiators_) sum += negotiator->full_announcements();
    return sum;
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
          ++buckets;
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
    buckets = 0;
  }

  std::vector<std::string> ran, withdrawn, failed;
  int buckets = 0;       ///< that ran, on all ranks together
  bool runs_end = true;  ///< with each submission

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

TEST(NegotiatorTest, AContributionThatComesTooLateIsNotAnnounced) {
  Ranks ranks(nodes_of({2}));
  ranks.submit_everywhere("x");
  ranks.deliver();
  const auto join = [&](int rank) {
    ranks[rank].submit(ranks.make(rank, "join", {.kind = OpKind::join}));
    ranks.deliver();
  };
  join(1);
  ranks.forget();
  const auto waits = ranks.submit(0, "x");
  ranks.deliver();
  ranks[0].submit_again(waits);  // a vote, in which rank 1 is late
  for (int attempt : {1, 2}) {
    ranks[0].overdue(waits, attempt);
    ranks.deliver();
  }
  EXPECT_EQ(ranks.failed.size(), 1u);
  const auto contribution = ranks.make(1, "x", sum_of(5));
  contribution->pending.scratch = std::make_shared<int>();
  ranks[1].submit_again(contribution);
  ranks.deliver();
  join(0);
  (void)ranks.submit(0, "x");
  ranks.deliver();
  EXPECT_TRUE(ranks.ran.empty()) << "rank 1's program has submitted nothing";
  (void)ranks.submit(1, "x");
  ranks.deliver();
  EXPECT_EQ(ranks.ran.size(), 2u);
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

/// What each of the ranks gets.
Texts on_all(int ranks, const std::string& text) {
  Texts texts;
  for (int rank = 0; rank < ranks; ++rank) texts.push_back(std::to_string(rank) + text);
  return texts;
}

Texts sorted(Texts texts) {
  std::ranges::sort(texts);
  return texts;
}

TEST(NegotiatorTest, ShapesThatTakeTurnsStayNumbers) {
  Ranks ranks(nodes_of({2, 2}));
  for (int step = 0; step < 4; ++step) {
    const auto before = ranks.full_announcements();
    for (std::int64_t elements : {5, 7}) {
      ranks.submit_everywhere("x", elements);
      ranks.submit_everywhere("y");
      ranks.deliver();
    }
    EXPECT_EQ(ranks.full_announcements() - before, step == 0 ? 12u : 0u);
  }
  EXPECT_EQ(ranks.ran.size(), 4u * 4u * 4u);
}

/// The ranks that differ are below rank 1, which is not the root; `alone`: what is announced by number is in no bucket
/// with others.
TEST(NegotiatorTest, WhoDiffersIsNamedWhateverTheOthersHave) {
  for (const bool alone : {true, false}) {
    for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
      for (const std::int64_t known : {0, 7}) {  // another shape, or that one too
        Ranks ranks(nodes_of({1, 2}));           // 2 below 1 below 0
        ranks.fuse(alone ? Texts{"x"} : Texts{"w", "x", "y"});
        if (known > 0) ranks.submit_everywhere("x", known);
        ranks.deliver();
        ranks.forget();
        for (int rank : order) {
          (void)ranks.submit(rank, "x", rank == 2 ? 7 : 5);
          if (!alone) (void)ranks.submit(rank, "w");
          if (!alone) (void)ranks.submit(rank, "y");
          ranks.deliver();
        }
        EXPECT_EQ(sorted(ranks.failed),
                  on_all(3,
                         "x: all_reduce 'x' in group world: ranks submitted different shapes (ranks 0, 1: f32[5]; rank "
                         "2: f32[7]); submit the same shape on every rank"));
        EXPECT_EQ(ranks.ran.size(), alone ? 0u : 6u);
        ranks.forget();
        ranks.submit_everywhere("x");
        ranks.deliver();
        EXPECT_EQ(sorted(ranks.ran), on_all(3, "x"));
      }
    }
  }
}

TEST(NegotiatorTest, WhoeverWaitsForAnotherShapeLearnsOfOnesThatAreHeldBack) {
  Ranks ranks(nodes_of({2}));
  ranks.fuse({"x", "y"});
  (void)ranks.submit(0, "x");  // and not y, for which nobody waits
  ranks.wait(1, ranks.submit(1, "x", 7));
  ranks.deliver();
  EXPECT_EQ(ranks.failed.size(), 2u);
}

TEST(NegotiatorTest, AnotherShapeThatStandsStillKeepsNothingApart) {
  Ranks ranks(nodes_of({2}));
  ranks.fuse({"x", "y", "z"});
  (void)ranks.submit(1, "x", 7);
  ranks[1].flush_all();
  ranks.deliver();
  (void)ranks.submit(0, "x", 7);
  ranks.run({"y", "z"});
  ranks.wait(0, ranks.submit(0, "y"));  // a cut
  (void)ranks.submit(1, "y");
  ranks.deliver();
  for (int run = 0; run < 20; ++run) {
    ranks.forget();
    ranks.run({"y", "z"});
  }
  EXPECT_EQ(ranks.ran.size(), 4u);
  EXPECT_EQ(ranks.buckets, 2) << "fused again";
}

TEST(NegotiatorTest, AConflictThatIsTakenBackLeavesNothing) {
  Ranks ranks(nodes_of({1, 2}));
  ranks.submit_everywhere("x");
  ranks.deliver();
  ranks.forget();
  (void)ranks.submit(1, "x");
  const auto odd = ranks.submit(2, "x", 7);
  ranks.deliver();
  ranks[2].withdraw(odd);
  ranks.deliver();
  EXPECT_EQ(ranks.withdrawn, Texts{"2x"});
  (void)ranks.submit(2, "x");
  (void)ranks.submit(0, "x");
  ranks.deliver();
  EXPECT_EQ(sorted(ranks.ran), on_all(3, "x"));
  const auto before = ranks.full_announcements();
  ranks.submit_everywhere("x");
  ranks.deliver();
  EXPECT_EQ(ranks.ran.size(), 6u);
  EXPECT_TRUE(ranks.failed.empty());
  EXPECT_EQ(ranks.full_announcements(), before) << "by number again";
}

TEST(NegotiatorTest, WhatFailsOnARankFailsByNumberAndLetsItsBucketRun) {
  Ranks ranks(nodes_of({2, 2}));
  ranks.fuse({"w", "x", "y"});
  const auto before = ranks.full_announcements();
  for (int rank = 0; rank < 4; ++rank) {
    const auto invalid = [&](const char* text) {
      return rank == 0 ? std::nullopt : std::optional(Failure{ErrorCode::invalid_argument, text});
    };
    (void)ranks.submit(rank, "w");
    (void)ranks.submit(rank, "x", 5, invalid(rank == 2 ? "no" : "bad"));
    (void)ranks.submit(rank, "y");
  }
  ranks.deliver();
  EXPECT_EQ(sorted(ranks.failed), on_all(4, "x: all_reduce 'x' in group world: ranks 1, 3: bad"));
  EXPECT_EQ(ranks.ran.size(), 8u);
  EXPECT_EQ(ranks.full_announcements(), before);
}

}  // namespace
}  // namespace kolo
