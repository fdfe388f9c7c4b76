// Single exchanges between negotiators, message by message. Random ones are in negotiation_test.

#include "runtime/negotiation/negotiator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <type_traits>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/negotiation/census.h"
#include "runtime/operation/block_sizes.h"
#include "tests/runtime/negotiation/negotiation_simulation.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

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

  SubmissionPtr make(int rank, const std::string& name, const Signature& signature,
                     std::optional<Failure> invalid = std::nullopt) {
    Request request;
    request.invalid = std::move(invalid);
    request.text = name;
    request.group = groups_[static_cast<std::size_t>(rank)];
    request.signature = signature;
    if (has_rows(signature.kind)) request.sizes = {static_cast<std::int64_t>(groups_.size()), SizeMark::apart, 1};
    request.tensors.push_back({{nullptr, request.signature.shape, DType::f32, {}}, {}});
    request.timeout_seconds = 1;
    auto submission = std::make_shared<Submission>(std::move(request));
    submission->queued.sequence = ++sequence_;
    return submission;
  }
  SubmissionPtr submit(int rank, const std::string& name, std::int64_t elements = 5, OpKind kind = OpKind::all_reduce,
                       std::optional<Failure> invalid = std::nullopt) {
    Signature signature = sum_of(elements);
    signature.kind = kind;
    return submit(rank, name, signature, std::move(invalid));
  }
  SubmissionPtr submit(int rank, const std::string& name, const Signature& signature,
                       std::optional<Failure> invalid = std::nullopt) {
    const auto submission = make(rank, name, signature, std::move(invalid));
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
          if (rank == 0) layouts.emplace_back();
          for (const auto& member : std::get<AgreedBucket>(next).members) {
            if (rank == 0) layouts.back() += member->request.name();
          }
          for (const auto& member : std::get<AgreedBucket>(next).members)
            ran.push_back(std::to_string(rank) + member->request.name());
        }
        for (const auto& member : decisions.withdrawn)
          withdrawn.push_back(std::to_string(rank) + member->request.name());
        for (const auto& [member, failure] : decisions.failed)
          failed.push_back(std::to_string(rank) + member->request.name() + ": " + failure.message);
      }
    }
  }
  void forget() {
    ran.clear();
    withdrawn.clear();
    failed.clear();
    buckets = 0;
    layouts.clear();
  }

  /// The program waits.
  void wait(int rank, const SubmissionPtr& submission) {
    (*this)[rank].fence();
    (*this)[rank].look(submission, ++sequence_);
  }

  std::vector<std::string> ran, withdrawn, failed;
  int buckets = 0;                   ///< that ran, on all ranks together
  std::vector<std::string> layouts;  ///< the names in each, on rank 0
  bool runs_end = true;              ///< with each submission

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

TEST(NegotiatorTest, OfWhatIsReadyTheHigherPriorityRunsFirst) {
  Ranks ranks(nodes_of({2}));
  const std::vector<std::pair<std::string, int>> all{{"a", 0}, {"b", -1}, {"c", 2}, {"d", 0}, {"e", 2}};
  for (const char* how : {"by name", "by number"}) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& [name, priority] : all) {
        Signature signature = sum_of(static_cast<std::int64_t>(5 + priority));
        signature.priority = priority;
        (void)ranks.submit(rank, name, signature);
      }
    }
    ranks.deliver();
    EXPECT_EQ(ranks.layouts, (Texts{"c", "e", "a", "d", "b"})) << how;
    ranks.forget();
  }
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
  for (int attempt = 1; attempt <= 6; ++attempt) {
    ranks[0].overdue(waits, 1, attempt);
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

TEST(CensusTest, AnAnswerToWhatWasAskedBeforeCountsForNothing) {
  const Membership membership(std::make_shared<const GroupInfo>(GroupInfo{.ranks = {0, 1}}));
  Census census(membership);
  const Overdue overdue{"x", OpKind::all_reduce, 1, 0.1};
  const auto first = census.overdue(overdue);
  census.close("x");  // it has failed; rank 1 learns of that after its answer
  const auto second = census.overdue(overdue);
  ASSERT_TRUE(first && second);
  census.present({"x", 1, true, true, first->question});
  census.present({"x", 0, false, false, second->question});
  census.present({"x", 1, false, false, second->question});
  EXPECT_TRUE(census.take().empty()) << "the next operation of this name would fail";
}

TEST(CensusTest, WhatWasAgreedOnMeanwhileIsMissingNowhere) {
  const Membership membership(std::make_shared<const GroupInfo>(GroupInfo{.ranks = {0, 1, 2}}));
  Census census(membership);
  const auto question = census.overdue({"x", OpKind::all_reduce, 1, 0.1});
  ASSERT_TRUE(question);
  census.present({"x", 0, false, false, question->question});
  census.present({"x", 1, false, true, question->question});  // it runs there
  census.present({"x", 2, false, false, question->question});
  EXPECT_TRUE(census.take().empty());
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
    (void)ranks.submit(rank, "x", 5, OpKind::all_reduce, invalid(rank == 2 ? "no" : "bad"));
    (void)ranks.submit(rank, "y");
  }
  ranks.deliver();
  EXPECT_EQ(sorted(ranks.failed), on_all(4, "x: all_reduce 'x' in group world: ranks 1, 3: bad"));
  EXPECT_EQ(ranks.ran.size(), 8u);
  EXPECT_EQ(ranks.full_announcements(), before);
}

/// Messages of every kind, with names, numbers, buckets, ranks and sizes at random.
class Scribbler {
 public:
  explicit Scribbler(std::uint64_t seed) : random(seed) {}

  template <class Message>
  std::vector<std::byte> message() {
    Message message;
    draw<Message>(message, random() % std::variant_size_v<Message>);
    Writer writer;
    encode(writer, message);
    return {writer.bytes().begin(), writer.bytes().end()};
  }

  std::mt19937_64 random;

 private:
  template <class Message, std::size_t index = 0>
  void draw(Message& message, std::size_t wanted) {
    if constexpr (index < std::variant_size_v<Message>) {
      if (index != wanted) return draw<Message, index + 1>(message, wanted);
      std::variant_alternative_t<index, Message> drawn;
      fill(drawn);
      message = std::move(drawn);
    }
  }
  std::uint64_t below(std::uint64_t end) { return random() % end; }
  template <class T>
  void fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = below(2) == 0;
    } else if constexpr (std::is_same_v<T, double>) {
      value = static_cast<double>(below(10));
    } else if constexpr (std::is_same_v<T, std::int32_t>) {  // a rank, mostly
      value = static_cast<std::int32_t>(below(10) < 9 ? below(3) : below(6)) - 1;
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(below(20) == 0 ? random() : below(8));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = std::string(1, static_cast<char>('w' + below(4)));
    } else if constexpr (std::is_same_v<T, OpKind>) {
      value = static_cast<OpKind>(below(op_kind_count));
    } else if constexpr (std::is_same_v<T, Failure>) {
      value = {ErrorCode::backend, "scribbled"};
    } else if constexpr (std::is_same_v<T, RankSet>) {
      for (int rank = 0; rank < 3; ++rank) {
        if (below(2) == 0) value.add(rank);
      }
    } else if constexpr (std::is_same_v<T, Signature>) {
      value = sum_of(static_cast<std::int64_t>(4 + below(2)));
      if (below(3) > 0) return;
      fill(value.kind);
      value.root = static_cast<int>(below(9)) - 2;
      value.shape = below(3) == 0 ? Shape{} : Shape{has_rows(value.kind) ? any_rows : 5, 2};
      if (below(4) == 0) value.members = {{"x", DType::f32, value.shape}, {"y", DType::i8, Shape{}}};
    } else if constexpr (requires { T::fields(value); }) {
      std::apply([&](auto&... field) { (fill(field), ...); }, T::fields(value));
    } else if constexpr (requires { value.emplace(); }) {  // optional
      if (below(4) == 0) fill(value.emplace());
    } else {
      for (auto count = below(4); count > 0; --count) fill(value.emplace_back());
    }
  }
};

/// What no rank would send is an error of the runtime, or does something else, but nothing outside of what there is;
/// also what comes after an error.
TEST(NegotiatorTest, MessagesThatAreScribbledDoNoHarm) {
  int refused = 0, accepted = 0;
  for (const std::uint64_t seed : testing::seeds(20000)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Ranks ranks(nodes_of(seed % 2 == 0 ? std::vector{3} : std::vector{1, 2}));
    Scribbler scribbler(seed);
    const auto kind = [&] { return scribbler.random() % 3 == 0 ? OpKind::all_gather : OpKind::all_reduce; };
    for (const char* name : {"x", "y", "z"}) {
      const OpKind of_name = kind();
      for (int rank = 0; rank < 3; ++rank) (void)ranks.submit(rank, name, 5, of_name);
    }
    ranks.deliver();
    const int rank = static_cast<int>(scribbler.random() % 3);
    Negotiator& negotiator = ranks[rank];
    if (scribbler.random() % 2 == 0) (void)ranks.submit(rank, "", 0, OpKind::join);
    for (int i = 0; i < 20; ++i) {
      try {
        if (scribbler.random() % 4 == 0)
          (void)ranks.submit(rank, std::string(1, static_cast<char>('w' + scribbler.random() % 4)), 5, kind());
        const auto bytes = rank == 0 ? scribbler.message<UpMessage>() : scribbler.message<DownMessage>();
        Reader reader(bytes, 3);
        rank == 0 ? negotiator.receive_from_child(1, reader) : negotiator.receive_from_parent(reader);
        negotiator.decide();
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.code()), "backend") << error.what();
        ++refused;
      }
      negotiator.send([](int, Direction, std::span<const std::byte>) {});
      Decisions decisions = negotiator.take();
      for (const auto& next : decisions.run) {
        if (const auto* const bucket = std::get_if<AgreedBucket>(&next)) {
          ASSERT_FALSE(bucket->members.empty());
        }
      }
      for (const Unsubmitted& operation : decisions.to_contribute) {
        const auto group = std::make_shared<GroupInfo>(negotiator.group());
        const SubmissionPtr part = neutral_contribution(operation, group, 0);
        if (!part->pending.objection) {
          EXPECT_TRUE(!moves_data(operation.signature.kind) || !part->request.tensors.empty());
        }
      }
    }
  }
  std::printf("%d scribbled messages were refused, %d not\n", refused, accepted);
}

/// Submits an operation whose rows are agreed, and tells rank 1 that it runs with other sizes.
TEST(NegotiatorTest, SizesThatAreNotThoseOfTheTensorAreRefused) {
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {2}, {2, -1}, {2, -1, 1, 1}}) {
    Ranks ranks(nodes_of({2}));
    for (int rank = 0; rank < 2; ++rank) (void)ranks.submit(rank, "x", any_rows, OpKind::all_gather);
    ranks.deliver();
    ASSERT_EQ(ranks.ran.size(), 2u);
    const auto waits = ranks.submit(1, "x", any_rows, OpKind::all_gather);
    Writer writer;
    encode(writer, DownMessage(kolo::Run{{0}, {{0, {0, 1}, sizes}}}));
    Reader reader(writer.bytes(), 2);
    EXPECT_EQ(testing::error_text([&] { ranks[1].receive_from_parent(reader); }, ErrorCode::backend),
              "malformed control message (not the sizes of its tensor)");
    EXPECT_TRUE(ranks[1].waits(waits)) << "it fails with the group";
  }
}

TEST(NegotiatorTest, WhatIsNoPlanIsRefusedAndChangesNothing) {
  for (const DownMessage& message :
       {DownMessage(Replan{{{0, 1}, {}}}), DownMessage(Replan{{{0}, {0}}}), DownMessage(Replan{{{0, 7}}}),
        DownMessage(Forget{{0, 0}}), DownMessage(Forget{{0, 9}})}) {
    Ranks ranks(nodes_of({2}));
    for (const char* name : {"x", "y"}) {
      for (int rank = 0; rank < 2; ++rank) (void)ranks.submit(rank, name);
    }
    ranks.deliver();
    ranks.forget();
    const auto waits = ranks.submit(1, "x");
    Writer writer;
    encode(writer, message);
    Reader reader(writer.bytes(), 2);
    EXPECT_EQ(testing::error_text([&] { ranks[1].receive_from_parent(reader); }, ErrorCode::backend).substr(0, 26),
              "malformed control message ");
    EXPECT_TRUE(ranks[1].waits(waits));
    (void)ranks.submit(0, "x");
    ranks.deliver();
    EXPECT_EQ(ranks.ran.size(), 2u);
  }
}

TEST(NegotiatorTest, AnEmptyAnnouncementIsRefused) {
  Ranks ranks(nodes_of({2}));
  Writer writer;
  encode(writer, UpMessage(Announcement{"x", {}}));
  Reader reader(writer.bytes(), 2);
  EXPECT_EQ(testing::error_text([&] { ranks[0].receive_from_child(1, reader); }, ErrorCode::backend),
            "malformed control message (an empty announcement)");
}

/// Two ranks that have learned a bucket of two tensors on devices.
class DeviceBuckets : public ::testing::Test {
 protected:
  DeviceBuckets() {
    step();
    EXPECT_EQ(ranks.layouts, (Texts{"a", "b"})) << "what is new runs alone";
    step();
    EXPECT_EQ(ranks.layouts, Texts{"ab"});
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
  EXPECT_TRUE(ranks.layouts.empty()) << "the program on rank 0 may be about to go on";
  (void)submit(0, "b");
  ranks.deliver();
  EXPECT_EQ(ranks.layouts, Texts{"ab"});
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
    EXPECT_EQ(ranks.layouts, (Texts{"a", "b"})) << waits;
    for (const auto& [rank, submission] : all) ranks.wait(rank, submission);
    step();
    EXPECT_EQ(ranks.layouts, (Texts{"a", "b"})) << "it stays so";
    for (int run = 0; run < 8; ++run) step();
    EXPECT_EQ(ranks.layouts, Texts{"ab"}) << "and is tried again after some runs";
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
  EXPECT_EQ(ranks.layouts, Texts{"a"});
  EXPECT_FALSE(ranks[0].keeps_parts());
  const auto last = submit(0, "b");
  ranks.deliver();
  EXPECT_EQ(ranks.layouts, (Texts{"a", "b"}));
  for (const auto& submission : {first, last}) ranks.wait(0, submission);
  ranks.wait(1, second);
  for (int run = 0; run < 20; ++run) step();
  EXPECT_EQ(ranks.layouts, (Texts{"a", "b"})) << "else it would wait as long again";
}

}  // namespace
}  // namespace kolo
