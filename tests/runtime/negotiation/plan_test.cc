// What the ranks agree on about buckets: the replica of the plan, how runs are cut into buckets, how runs are learned.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <string>

#include "runtime/negotiation/fusion.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/plan_learner.h"
#include "runtime/operation/block_sizes.h"
#include "tests/runtime/negotiation/negotiation_simulation.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;
using testing::sum_of;
using Buckets = std::vector<std::vector<TensorNumber>>;

TEST(PlanCacheTest, NumbersNamesAndBucketsInOrder) {
  PlanCache plan;
  EXPECT_EQ(plan.define("a", sum_of(5)), 0u);
  EXPECT_EQ(plan.define("b", sum_of(5)), 1u);
  EXPECT_EQ(plan.define("a", sum_of(6)), 2u);
  EXPECT_EQ(plan.find("a", sum_of(5)), 0u);
  EXPECT_EQ(plan.find("a", sum_of(6)), 2u);
  EXPECT_EQ(plan.find("a", sum_of(7)), std::nullopt);
  EXPECT_EQ(plan.find("c", sum_of(5)), std::nullopt);
  EXPECT_EQ(std::vector(plan.numbers("a").begin(), plan.numbers("a").end()), (std::vector<TensorNumber>{0, 2}));
  EXPECT_TRUE(plan.numbers("c").empty());
  EXPECT_EQ(plan.next_bucket(), 3u);
  ASSERT_NE(plan.members(1), nullptr);
  EXPECT_EQ(*plan.members(1), (std::vector<TensorNumber>{1}));
}

TEST(PlanCacheTest, WhatFollowsFromSizesIsWorkedOutOnce) {
  PlanCache plan;
  Signature gathered = sum_of(5);
  gathered.kind = OpKind::all_gather;
  plan.define("a", gathered);
  GroupInfo group;
  group.ranks = {0, 1};
  plan.set_sizes({0, RankSet{0}, {5, SizeMark::apart, 2}});
  plan.set_sizes({0, RankSet{1}, {5, SizeMark::apart, 3}});
  EXPECT_FALSE(plan.as_before(0, {}, {})) << "it has not run";
  const AgreedRows* const first = &plan.agreed_rows(0, group, {});
  EXPECT_EQ(first->tensors[0].output_rows, 5);
  EXPECT_EQ(*first->tensors[0].rows, (BlockRows{2, 3}));
  EXPECT_TRUE(plan.as_before(0, {}, {}));
  EXPECT_EQ(&plan.agreed_rows(0, group, {}), first);
  const SizesOfRanks more{0, RankSet{1}, {6, SizeMark::apart, 4}};
  EXPECT_FALSE(plan.as_before(0, {more}, {}));
  EXPECT_FALSE(plan.as_before(0, {}, {1})) << "a rank has joined";
  plan.set_sizes(more);
  EXPECT_FALSE(plan.as_before(0, {}, {}));
  EXPECT_EQ(plan.agreed_rows(0, group, {}).tensors[0].output_rows, 6);
  EXPECT_EQ(plan.agreed_rows(0, group, {1}).tensors[0].output_rows, 2);
}

TEST(PlanCacheTest, RegroupingRetiresOldBucketsForGood) {
  PlanCache plan;
  for (const char* name : {"a", "b", "c"}) plan.define(name, sum_of(5));
  EXPECT_EQ(plan.regroup({{{0, 1}, {2}}}), (std::vector<BucketId>{0, 1, 2}));
  EXPECT_EQ(plan.row(0).bucket, 3u);
  EXPECT_EQ(plan.row(2).bucket, 4u);
  EXPECT_EQ(plan.members(0), nullptr);
  EXPECT_EQ(*plan.members(3), (std::vector<TensorNumber>{0, 1}));
  EXPECT_EQ(plan.regroup({{{1}, {0}}}), std::vector<BucketId>{3});
  EXPECT_EQ(plan.next_bucket(), 7u);
  EXPECT_EQ(error_text([&] { plan.regroup({{{99}}}); }, ErrorCode::backend),
            "malformed control message (unknown tensor in a plan)");
}

TEST(PlanCacheTest, IsolatingANameLeavesTheRestTogether) {
  PlanCache plan;
  for (const char* name : {"a", "b", "c"}) plan.define(name, sum_of(5));
  plan.define("b", sum_of(6));
  plan.regroup({{{0, 1, 2, 3}}});  // bucket 4
  plan.isolate("b");
  EXPECT_EQ(*plan.members(plan.row(1).bucket), std::vector<TensorNumber>{1});
  EXPECT_EQ(*plan.members(plan.row(3).bucket), std::vector<TensorNumber>{3});
  EXPECT_EQ(*plan.members(plan.row(0).bucket), (std::vector<TensorNumber>{0, 2}));
  EXPECT_EQ(plan.row(0).bucket, plan.row(2).bucket);
  EXPECT_EQ(plan.members(4), nullptr);
  EXPECT_TRUE(plan.isolate("unknown").empty());
}

Buckets fuse_all(const std::vector<Signature>& signatures, std::int64_t bytes) {
  std::vector<Fusible> run;
  for (const Signature& signature : signatures) {
    const auto size = signature.shape.elements() * static_cast<std::int64_t>(size_of(signature.dtype));
    run.push_back({static_cast<TensorNumber>(run.size()), &signature, size, false});
  }
  return fuse(run, bytes);
}

TEST(Fusion, FillsBucketsUpToTheLimit) {
  const Signature four_bytes = sum_of(1);
  EXPECT_EQ(fuse_all({four_bytes, four_bytes, four_bytes, four_bytes, four_bytes}, 8), (Buckets{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(fuse_all({four_bytes, four_bytes, four_bytes}, 12), (Buckets{{0, 1, 2}}));
  EXPECT_EQ(fuse_all({four_bytes, four_bytes, four_bytes}, 7), (Buckets{{0, 1}, {2}}))
      << "full as soon as it holds so much";
  EXPECT_EQ(fuse_all({four_bytes, sum_of(100), four_bytes, four_bytes}, 8), (Buckets{{0, 1}, {2, 3}}));
  EXPECT_EQ(fuse_all({sum_of(0), sum_of(0), four_bytes, sum_of(0)}, 4), (Buckets{{0, 1, 2}, {3}}));
  EXPECT_EQ(fuse_all({}, 8), Buckets{});
}

TEST(Fusion, AsFewBucketsAsTheBytesNeed) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<Signature> signatures;
    std::int64_t bytes = 0;
    for (int i = 0; i < 200; ++i) {
      signatures.push_back(sum_of(static_cast<std::int64_t>(random() % 1000)));
      bytes += 4 * signatures.back().shape[0];
    }
    EXPECT_LE(static_cast<std::int64_t>(fuse_all(signatures, 10'000).size()), bytes / 10'000 + 1);
  }
}

TEST(Fusion, KindsOfTensorsInterleave) {
  const Signature f32 = sum_of(1), f64 = sum_of(1, DType::f64);
  Signature maximum = f32;
  maximum.op = ReduceOp::max;
  EXPECT_EQ(fuse_all({f32, f64, f32, f64, f32}, 1000), (Buckets{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(fuse_all({f32, maximum, f32}, 1000), (Buckets{{0, 2}, {1}}));
  EXPECT_EQ(fuse_all({f32, f64, f32, f32, f64}, 8), (Buckets{{0, 2}, {1}, {3}, {4}}));
}

TEST(Fusion, OnlyShapesMayDiffer) {
  const Signature base = sum_of(4);
  EXPECT_TRUE(fusable(base, sum_of(400)));
  const auto with = [&](auto change) {
    Signature other = base;
    change(other);
    return fusable(base, other);
  };
  EXPECT_FALSE(with([](Signature& s) { s.op = ReduceOp::average; }));
  EXPECT_FALSE(with([](Signature& s) { s.dtype = DType::f16; }));
  EXPECT_FALSE(with([](Signature& s) { s.device = DeviceKind::cuda; }));
  EXPECT_FALSE(with([](Signature& s) { s.prescale = 2; }));
  EXPECT_FALSE(with([](Signature& s) { s.postscale = 2; }));
  EXPECT_FALSE(with([](Signature& s) { s.kind = OpKind::broadcast; }));
  EXPECT_FALSE(with([](Signature& s) { s.root = 1; }));
  EXPECT_FALSE(with([](Signature& s) { s.priority = 1; }));
  for (int kind = 0; kind < op_kind_count; ++kind) {
    const Signature one{.kind = static_cast<OpKind>(kind), .shape = Shape{6, 2}},
        other{.kind = one.kind, .shape = Shape{9}};
    EXPECT_EQ(fusable(one, other), moves_data(one.kind)) << to_string(one.kind);
  }
  const Signature barrier{.kind = OpKind::barrier};
  EXPECT_FALSE(fusable(barrier, barrier));
}

TEST(Fusion, FollowsTheProgramsOrderOnly) {
  const Signature four_bytes = sum_of(1);
  std::vector<Fusible> run;
  for (TensorNumber number : {5u, 3u, 1u, 0u, 2u, 4u}) run.push_back({number, &four_bytes, 4, false});
  EXPECT_EQ(fuse(run, 8), (Buckets{{5, 3}, {1, 0}, {2, 4}}));
  run[1].alone = true;
  EXPECT_EQ(fuse(run, 8), (Buckets{{5, 1}, {3}, {0, 2}, {4}})) << "names with several signatures";
}

TEST(Fusion, HugeTensorsDoNotOverflow) {
  const std::int64_t most = (std::int64_t{1} << 60) - 1;
  EXPECT_EQ(fuse_all({sum_of(most, DType::f64), sum_of(most, DType::f64)}, most * 8 + 1), (Buckets{{0, 1}}));
  EXPECT_EQ(fuse_all({sum_of(most, DType::f64), sum_of(most, DType::f64), sum_of(1, DType::f64)}, most * 8 + 1),
            (Buckets{{0, 1}, {2}}));
}

/// A learner and the plan it watches.
class Learning {
 public:
  explicit Learning(std::int64_t fusion_bytes = 1 << 20) : learner_(fusion_bytes) {}

  SubmissionPtr submit(const std::string& name, bool known = true) {
    if (known && !plan.find(name, sum_of(1))) plan.define(name, sum_of(1));
    Request request;
    request.text = name;
    request.signature = sum_of(1);
    auto submission = std::make_shared<Submission>(std::move(request));
    submission->pending.agreed = known;
    learner_.submitted(submission, !known);
    return submission;
  }
  void wait() { learner_.waited(); }
  void keep_apart(const std::vector<TensorNumber>& tensors) { learner_.keep_apart(tensors); }
  Buckets propose() {
    const auto change = learner_.propose(plan);
    if (!change) return {};
    plan.regroup(*change);
    return change->buckets;
  }
  PlanCache plan;

 private:
  PlanLearner learner_;
};

TEST(PlanLearnerTest, PlansARunWhenItEnds) {
  Learning learning;
  for (const char* name : {"a", "b", "c"}) learning.submit(name);
  EXPECT_EQ(learning.propose(), Buckets{}) << "the run goes on";
  learning.wait();
  EXPECT_EQ(learning.propose(), (Buckets{{0, 1, 2}}));
  EXPECT_EQ(learning.propose(), Buckets{});
}

TEST(PlanLearnerTest, WhatWasCutIsFusedAgain) {
  Learning learning;
  for (int step = 0; step < 3; ++step) {
    for (const char* name : {"a", "b"}) learning.submit(name);
    learning.wait();
    EXPECT_EQ(learning.propose(), step == 0 ? (Buckets{{0, 1}}) : Buckets{});
  }
  for (int until_fused : {6, 16, 16}) {
    learning.plan.regroup({{{0}, {1}}});  // a cut, because some rank waits in between
    for (int run = 1; run <= until_fused; ++run) {
      for (const char* name : {"a", "b"}) learning.submit(name);
      learning.wait();
      EXPECT_EQ(learning.propose(), run == until_fused ? (Buckets{{0, 1}}) : Buckets{}) << run;
    }
  }
  learning.plan.regroup({{{0}, {1}}});
  learning.keep_apart({0, 1});  // cut because nothing else went on
  for (int run = 0; run < 40; ++run) {
    for (const char* name : {"a", "b"}) learning.submit(name);
    learning.wait();
    EXPECT_EQ(learning.propose(), Buckets{});
  }
}

TEST(PlanLearnerTest, WhatIsNewGetsItsNumberAndItsPlaceAtOnce) {
  PlanCache plan;
  PlanLearner learner(1 << 20);
  std::vector<SubmissionPtr> kept;
  const auto submit = [&](const std::string& name) {
    Request request;
    request.text = name;
    request.signature = sum_of(1);
    kept.push_back(std::make_shared<Submission>(std::move(request)));
    learner.submitted(kept.back(), !plan.find(name, sum_of(1)));
  };
  plan.define("a", sum_of(1));
  for (const char* name : {"a", "b", "c"}) submit(name);
  EXPECT_TRUE(learner.in_open_run("b"));
  EXPECT_FALSE(learner.in_open_run("x"));
  learner.waited();
  EXPECT_FALSE(learner.in_open_run("b"));
  const auto change = learner.propose(plan);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->defined, (std::vector{Define{"b", sum_of(1)}, Define{"c", sum_of(1)}}));
  EXPECT_EQ(change->buckets, (Buckets{{0, 1, 2}}));
  submit("d");
  learner.waited();
  EXPECT_FALSE(learner.propose(plan)) << "new and alone: there is nothing to plan";
}

TEST(PlanLearnerTest, LeavesOutWhatFailed) {
  Learning learning;
  learning.submit("a");
  learning.submit("b", false)->completion.done.set();  // rejected: it never got a number
  learning.submit("c");
  learning.wait();
  EXPECT_EQ(learning.propose(), (Buckets{{0, 1}}));
}

TEST(PlanLearnerTest, ATensorThatRanTwiceCountsOnce) {
  Learning learning;
  for (const char* name : {"a", "b", "a", "a"}) learning.submit(name);  // done before anybody waited
  learning.wait();
  EXPECT_EQ(learning.propose(), (Buckets{{0, 1}}));
}

TEST(PlanLearnerTest, WhoSharedABucketWithMovedTensorsKeepsSharing) {
  Learning learning;
  for (const char* name : {"a", "b", "c", "d"}) learning.submit(name);
  learning.wait();
  EXPECT_EQ(learning.propose(), (Buckets{{0, 1, 2, 3}}));
  for (const char* name : {"b", "x"}) learning.submit(name);
  learning.wait();
  EXPECT_EQ(learning.propose(), (Buckets{{1, 4}, {0, 2, 3}}));
}

/// A program with steps of the same tensors, of 100 bytes each, whose threshold is tuned.
class Steps {
 public:
  explicit Steps(PlanLearner::Of of = PlanLearner::Of::others_tuned, int tensors = 64) : learner_(6400, of) {
    for (int i = 0; i < tensors; ++i) names_.push_back("t" + std::to_string(i));
    if (of != PlanLearner::Of::layouts) return;
    for (const std::string& name : names_) plan.define(name, sum_of(25));  // there what is new is not planned
  }

  /// `time`: of a step, by the number of its buckets.
  void run(int steps, const std::function<int(std::size_t)>& time, bool agrees = true) {
    for (int step = 0; step < steps; ++step) {
      const auto before = buckets_of(names_);
      std::vector<SubmissionPtr> submitted;
      for (const std::string& name : names_) {
        Request request;
        request.text = name;
        request.signature = sum_of(25);
        request.tensors.push_back({{nullptr, Shape{25}, DType::f32, {}}, {}});
        request.submitted = now_;
        submitted.push_back(std::make_shared<Submission>(std::move(request)));
        learner_.submitted(submitted.back(), !plan.find(name, sum_of(25)));
        if (propose() > 0) {
          EXPECT_EQ(submitted.size(), 1u) << "in the middle of a step, which cuts buckets";
          ++changes;
        }
      }
      learner_.waited();
      if (propose() > 0) ++plannings;
      for (const SubmissionPtr& one : submitted) one->pending.agreed = agrees;
      for (const std::string& name : names_) learner_.looked(name);
      now_ += std::chrono::milliseconds(time(buckets_of(names_).size()));
    }
  }
  void add(const std::string& name) { names_.push_back(name); }
  void remove_last() { names_.pop_back(); }
  void rename(const std::string& name) {
    for (std::string& one : names_) one = name + one;
  }
  void keep_apart(const std::vector<TensorNumber>& tensors) { learner_.keep_apart(tensors); }
  std::size_t buckets() const { return buckets_of(names_).size(); }

  PlanCache plan;
  int changes = 0;    ///< of the threshold
  int plannings = 0;  ///< at the ends of runs

 private:
  int propose() {
    int count = 0;
    while (const auto change = learner_.propose(plan)) {
      for (const Define& define : change->defined) plan.define(define.name, define.signature);
      plan.regroup(*change);
      ++count;
    }
    return count;
  }
  std::set<BucketId> buckets_of(const std::vector<std::string>& names) const {
    std::set<BucketId> buckets;
    for (const std::string& name : names) {
      if (const auto number = plan.find(name, sum_of(25))) buckets.insert(plan.row(*number).bucket);
    }
    return buckets;
  }

  PlanLearner learner_;
  std::vector<std::string> names_;
  Request::Clock::time_point now_{};
};

TEST(PlanLearnerTest, TunesTheThresholdOfARunWithinFiftySteps) {
  // 6400, 1600, 400, 100 and 25 bytes: buckets of all 64 tensors, of 16, of 4, and of 1; the last differs in nothing.
  for (const std::size_t best : {1U, 4U, 16U, 64U}) {
    Steps steps;
    steps.run(50, [&](std::size_t buckets) { return buckets == best ? 100 : 110; });
    EXPECT_EQ(steps.buckets(), best);
    EXPECT_EQ(steps.plannings, 1);
    EXPECT_GE(steps.changes, 4);
    EXPECT_LE(steps.changes, 10);
    const int changes = steps.changes;
    steps.run(200, [&](std::size_t) { return 100; });
    EXPECT_EQ(steps.changes + steps.plannings, changes + 1) << "it is found for good";
  }
}

TEST(PlanLearnerTest, ACutIsHealedWithTheTunedThreshold) {
  Steps steps;
  steps.run(50, [&](std::size_t buckets) { return buckets == 4 ? 100 : 110; });
  const auto bucket = steps.plan.row(0).bucket;
  auto members = *steps.plan.members(bucket);
  ASSERT_EQ(members.size(), 16u);
  members.erase(members.begin());
  steps.plan.regroup({{{0}, members}});
  EXPECT_EQ(steps.buckets(), 5u);
  steps.run(20, [&](std::size_t) { return 100; });
  EXPECT_EQ(steps.buckets(), 4u);
}

TEST(PlanLearnerTest, ChangesNoThresholdWhileTensorsWait) {
  Steps steps;
  steps.run(
      100, [&](std::size_t buckets) { return buckets == 1 ? 110 : 100; }, false);
  EXPECT_EQ(steps.changes, 0);
  EXPECT_EQ(steps.buckets(), 1u);
}

TEST(PlanLearnerTest, TunesNothingWhoseLayoutMattersNorWhatIsKeptApart) {
  for (const auto of : {PlanLearner::Of::others, PlanLearner::Of::layouts}) {
    Steps steps(of);
    steps.run(100, [&](std::size_t buckets) { return buckets == 1 ? 110 : 100; });
    EXPECT_EQ(steps.changes + steps.plannings, 1);
    EXPECT_EQ(steps.buckets(), 1u);
  }
  for (const int after : {1, 10}) {
    Steps steps;
    const auto time = [&](std::size_t buckets) { return buckets == 1 ? 110 : 100; };
    steps.run(after, time);
    steps.keep_apart({3, 4});
    const int changes = steps.changes;
    steps.run(100, time);
    EXPECT_LE(steps.changes, changes);
  }
}

// A step with one more tensor now and then, say of an evaluation, moves no bucket; one that replaces the other is
// tuned.
TEST(PlanLearnerTest, RunsOfTheSameTensorsDoNotMoveThem) {
  Steps steps;
  steps.run(60, [&](std::size_t buckets) { return buckets == 4 ? 100 : 110; });
  const int changes = steps.changes;
  const auto buckets = [&] {
    std::set<BucketId> of;
    for (TensorNumber number = 0; number < 64; ++number) of.insert(steps.plan.row(number).bucket);
    return of;
  };
  const auto time = [&](std::size_t count) { return count == 17 ? 100 : 110; };
  const auto before = buckets();
  for (int round = 0; round < 100; ++round) {
    steps.add("more");
    steps.run(1, time);
    steps.remove_last();
    steps.run(5, time);
    ASSERT_EQ(buckets(), before);
  }
  EXPECT_EQ(steps.changes, changes);
  steps.add("more");
  steps.run(56, time);
  EXPECT_EQ(steps.buckets(), 17u);
}

TEST(PlanLearnerTest, TunesAFewRunsOnly) {
  Steps steps;
  const auto time = [&](std::size_t buckets) { return buckets == 4 ? 100 : 110; };
  for (int run = 0; run < 4; ++run) {
    steps.run(60, time);
    EXPECT_EQ(steps.buckets(), 4u);
    steps.rename("next ");
  }
  const int changes = steps.changes;
  steps.run(60, time);
  EXPECT_EQ(steps.changes, changes);
  EXPECT_EQ(steps.buckets(), 4u) << "as the last that was tuned";
}

}  // namespace
}  // namespace kolo
