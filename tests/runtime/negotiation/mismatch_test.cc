// The errors that all ranks get when they disagree, word for word.

#include "runtime/negotiation/mismatch.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kolo {
namespace {

/// What ranks 0-2 and rank 3 of a group get when rank 3 differs by `change`.
template <class Change>
std::string text_of(Signature base, Change change) {
  Signature other = base;
  change(other);
  const Failure failure =
      explain_rejection({"grad", {{other, std::nullopt, {3}}, {base, std::nullopt, {0, 1, 2}}}}, "world");
  EXPECT_EQ(failure.code, ErrorCode::mismatch);
  return failure.message;
}

const Signature base{.shape = Shape{5, 4}};
const Signature broadcast{.kind = OpKind::broadcast, .shape = Shape{5, 4}};

TEST(Mismatch, NamesWhatDiffersAndWhoSaidWhat) {
  EXPECT_EQ(text_of(base, [](Signature& s) { s.kind = OpKind::broadcast; }),
            "all_reduce 'grad' in group world: ranks submitted different operations (ranks 0-2: all_reduce; rank 3: "
            "broadcast); "
            "call the same operation for this name on every rank, or use another name");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.op = ReduceOp::average; }),
            "all_reduce 'grad' in group world: ranks submitted different reduce ops (ranks 0-2: sum; rank 3: average); "
            "pass the same op on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.dtype = DType::bf16; }),
            "all_reduce 'grad' in group world: ranks submitted different dtypes (ranks 0-2: f32; rank 3: bf16); "
            "submit the same dtype on every rank");
  EXPECT_EQ(
      text_of(base,
              [](Signature& s) {
                s.shape = Shape{4, 4};
              }),
      "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[4,4]); "
      "submit the same shape on every rank");
  EXPECT_EQ(
      text_of(base, [](Signature& s) { s.shape = Shape{20}; }),
      "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[20]); "
      "submit the same shape on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.shape = Shape{}; }),
            "all_reduce 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[]); "
            "submit the same shape on every rank");
  EXPECT_EQ(text_of(broadcast, [](Signature& s) { s.root = 2; }),
            "broadcast 'grad' in group world: ranks submitted different roots (ranks 0-2: root 0; rank 3: root 2); "
            "name the same root on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.prescale = 0.5; }),
            "all_reduce 'grad' in group world: ranks submitted different scales (ranks 0-2: prescale 1, postscale 1; "
            "rank 3: prescale 0.5, postscale 1); pass the same prescale and postscale on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.postscale = 0.25; }),
            "all_reduce 'grad' in group world: ranks submitted different scales (ranks 0-2: prescale 1, postscale 1; "
            "rank 3: prescale 1, postscale 0.25); pass the same prescale and postscale on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.priority = 3; }),
            "all_reduce 'grad' in group world: ranks submitted different priorities (ranks 0-2: priority 0; rank 3: "
            "priority 3); pass the same priority on every rank");
  EXPECT_EQ(text_of(base, [](Signature& s) { s.device = DeviceKind::cuda; }),
            "all_reduce 'grad' in group world: ranks submitted different device kinds (ranks 0-2: cpu; rank 3: cuda); "
            "keep the tensor on the same kind of device on every rank");
}

TEST(Mismatch, OfEveryKindOfOperation) {
  const Signature reduce{.kind = OpKind::reduce, .root = 1, .shape = Shape{5, 4}};
  EXPECT_EQ(
      text_of(reduce, [](Signature& s) { s.kind = OpKind::reduce_scatter; }),
      "reduce 'grad' in group world: ranks submitted different operations (ranks 0-2: reduce; rank 3: reduce_scatter); "
      "call the same operation for this name on every rank, or use another name");
  EXPECT_EQ(text_of(reduce, [](Signature& s) { s.root = 0; }),
            "reduce 'grad' in group world: ranks submitted different roots (ranks 0-2: root 1; rank 3: root 0); "
            "name the same root on every rank");
  EXPECT_EQ(text_of(reduce, [](Signature& s) { s.op = ReduceOp::logical_and; }),
            "reduce 'grad' in group world: ranks submitted different reduce ops (ranks 0-2: sum; rank 3: logical_and); "
            "pass the same op on every rank");
  EXPECT_EQ(
      text_of({.kind = OpKind::all_gather, .shape = Shape{5, 4}},
              [](Signature& s) {
                s.shape = Shape{6, 4};
              }),
      "all_gather 'grad' in group world: ranks submitted different shapes (ranks 0-2: f32[5,4]; rank 3: f32[6,4]); "
      "submit the same shape on every rank");
}

TEST(Mismatch, HasAtMost2KbWhateverTheProgramWrote) {
  const std::string name(100'000, 'n'), group = "world";
  const auto variant = [](Signature signature, std::optional<Failure> failure, RankSet ranks) {
    return Announcement::Variant{std::move(signature), std::move(failure), std::move(ranks)};
  };
  const Failure shapes = explain_rejection(
      {name, {variant({.shape = Shape{4}}, std::nullopt, {0}), variant({.shape = Shape{5}}, std::nullopt, {1})}},
      group);
  EXPECT_LT(shapes.message.size(), 2048U);
  EXPECT_NE(shapes.message.find("nnn...' in group world: ranks submitted different shapes (rank 0: f32[4]; "),
            std::string::npos);
  const Failure thrown = explain_rejection(
      {name, {variant({}, Failure{ErrorCode::backend, std::string(5000, 'q')}, {0}), variant({}, std::nullopt, {1})}},
      group);
  EXPECT_LT(thrown.message.size(), 2048U);
  EXPECT_TRUE(thrown.message.ends_with("qqq..."));
  Signature two{.shape = Shape{4}};
  two.members = {{name, DType::f32, Shape{4}}, {"b", DType::f32, Shape{4}}};
  Signature others = two;
  others.members[0].name += "2";
  others.members[0].shape = Shape{5};
  EXPECT_LT(explain_rejection({"x", {variant(two, std::nullopt, {0}), variant(others, std::nullopt, {1})}}, group)
                .message.size(),
            2048U);
}

TEST(Mismatch, TheCoarsestDifferenceIsNamed) {
  EXPECT_EQ(text_of(base,
                    [](Signature& s) {
                      s.dtype = DType::f64;
                      s.shape = Shape{4};
                    }),
            "all_reduce 'grad' in group world: ranks submitted different dtypes (ranks 0-2: f32; rank 3: f64); "
            "submit the same dtype on every rank");
}

TEST(Mismatch, SidesStandInTheOrderOfTheirLowestRanks) {
  const auto variant = [](std::int64_t extent, RankSet ranks) {
    return Announcement::Variant{{.shape = Shape{extent}}, std::nullopt, std::move(ranks)};
  };
  const Failure failure =
      explain_rejection({"w", {variant(3, {1, 5}), variant(2, {2, 3, 4}), variant(1, {0})}}, "rows");
  EXPECT_EQ(failure.message,
            "all_reduce 'w' in group rows: ranks submitted different shapes (rank 0: f32[1]; ranks 1, 5: f32[3]; ranks "
            "2-4: f32[2]); "
            "submit the same shape on every rank");
}

TEST(Mismatch, ATextHasAtMostTwoKilobytes) {
  Announcement announcement{.name = "w", .variants = {}};
  for (int rank = 0; rank < 16; ++rank) announcement.variants.push_back({{.shape = Shape{rank}}, std::nullopt, {rank}});
  for (int rank = 16; rank < 4000; ++rank) announcement.variants[rank % 16].ranks.add(rank);
  for (int rank = 4000; rank < 65536; rank += 2) announcement.others.add(rank);
  const std::string text = explain_rejection(announcement, "world").message;
  EXPECT_LE(text.size(), 2048u);
  EXPECT_NE(text.find("rank"), std::string::npos);
  EXPECT_NE(text.find(" and 226 more: f32[1]; "), std::string::npos) << text;
  EXPECT_NE(text.find(": something else); submit the same shape on every rank"), std::string::npos) << text;
}

TEST(Mismatch, RanksThatAgreeOnTheAspectShareASide) {
  const Signature a{.shape = Shape{1}}, b{.shape = Shape{2}}, c{.dtype = DType::f64, .shape = Shape{2}};
  const Failure failure =
      explain_rejection({"w", {{a, std::nullopt, {0}}, {b, std::nullopt, {1}}, {c, std::nullopt, {2}}}}, "world");
  EXPECT_EQ(failure.message,
            "all_reduce 'w' in group world: ranks submitted different dtypes (ranks 0, 1: f32; rank 2: f64); "
            "submit the same dtype on every rank");
}

TEST(Mismatch, AFailureOfOneRankGoesBeforeDifferences) {
  const Failure bad{ErrorCode::invalid_argument, "root 9 is not a rank of the group (it has 4, from 0)"};
  const Signature other{.dtype = DType::f64, .shape = Shape{1}};
  const Failure failure = explain_rejection({"grad", {{base, std::nullopt, {0, 1, 3}}, {other, bad, {2}}}}, "world");
  EXPECT_EQ(failure.code, ErrorCode::invalid_argument);
  EXPECT_EQ(failure.message,
            "all_reduce 'grad' in group world: rank 2: root 9 is not a rank of the group (it has 4, from 0)");
}

TEST(Mismatch, TextDoesNotDependOnTheOrderOfArrival) {
  std::vector<Announcement::Variant> variants{{{.shape = Shape{1}}, std::nullopt, {0}},
                                              {{.shape = Shape{2}}, std::nullopt, {1}},
                                              {{.shape = Shape{2}}, Failure{ErrorCode::backend, "b"}, {2}},
                                              {{.shape = Shape{3}}, Failure{ErrorCode::invalid_argument, "a"}, {3}}};
  const auto less = [](const auto& a, const auto& b) { return a.ranks < b.ranks; };
  do {
    EXPECT_EQ(explain_rejection({"w", variants}, "world"),
              (Failure{ErrorCode::backend, "all_reduce 'w' in group world: rank 2: b"}));
  } while (std::next_permutation(variants.begin(), variants.end(), less));
}

}  // namespace
}  // namespace kolo
