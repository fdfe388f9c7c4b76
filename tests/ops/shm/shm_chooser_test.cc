// Which way large jobs travel, found out by what they cost.

#include "ops/shm/chooser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <random>

namespace kolo {
namespace {

constexpr std::int64_t ring = 256 << 10;
constexpr ShmClass all_reduce{OpKind::all_reduce, 21, 4}, broadcast{OpKind::broadcast, 21, 4};
constexpr ShmPlace private_memory{ShmReach::readable, false}, shared_memory{ShmReach::mapped, false};
using Cost = std::function<float(const ShmChoice&)>;

/// The choosers of two ranks, of which the second takes a tenth longer.
struct TwoRanks {
  explicit TwoRanks(std::shared_ptr<const ShmKnown> known = {})
      : ranks{ShmChooser(ring, 2, known), ShmChooser(ring, 2, known)} {}

  /// One job; both ranks must decide the same. `late`: the trial is not complete when the next job asks.
  ShmChooser::Answer run(const ShmClass& of, ShmPlace place, const Cost& cost, bool late = false) {
    const bool asks = ranks[0].asks(of);
    EXPECT_EQ(ranks[1].asks(of), asks);
    const ShmChooser::Said all{place, ranks[0].last_trial(of).joined(ranks[1].last_trial(of))};
    const auto decided = [&](ShmChooser& rank) { return asks ? rank.answer(of, all) : rank.unasked(of); };
    const ShmChooser::Answer answer = decided(ranks[0]), other = decided(ranks[1]);
    EXPECT_EQ(other.choice, answer.choice);
    EXPECT_EQ(other.trial, answer.trial);
    asked = asks;
    total += cost(answer.choice);
    if (answer.trial == 0) return answer;
    ++trials;
    if (late) return answer;
    complete(0, of, answer.trial, 7, cost(answer.choice));
    complete(1, of, answer.trial, 0, 7 + 1.1F * cost(answer.choice));
    return answer;
  }

  /// On one rank a trial begins after `skew` and takes so long, in milliseconds.
  void complete(std::size_t rank, const ShmClass& of, std::uint64_t trial, float skew, float takes) {
    const auto after = [&](float milliseconds) {
      return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::llround(1e9 + 1e6 * milliseconds)));
    };
    ranks[rank].complete(of, trial, {after(skew), after(skew + takes)});
  }

  std::vector<ShmChooser> ranks;
  bool asked = false;
  int trials = 0;
  float total = 0;
};

Cost costs(float ring_256, float ring_64, float read_64, float read_256, float mapped = 9) {
  return [=](const ShmChoice& choice) {
    const bool large = choice.bytes == ring;
    if (choice.way == ShmWay::mapped) return mapped;
    return choice.way == ShmWay::ring ? (large ? ring_256 : ring_64) : (large ? read_256 : read_64);
  };
}

TEST(ShmChooser, FindsTheFastestWay) {
  const ShmChoice all[]{{ShmWay::ring, ring}, {ShmWay::ring, ring / 4}, {ShmWay::read, ring / 4}, {ShmWay::read, ring}};
  for (int best = 0; best < 4; ++best) {
    TwoRanks group;
    const auto cost = [&](const ShmChoice& choice) { return choice == all[best] ? 1.0F : 1.1F; };
    for (int i = 0; i < 40; ++i) group.run(all_reduce, private_memory, cost);
    EXPECT_EQ(group.run(all_reduce, private_memory, cost).choice, all[best]);
    EXPECT_EQ(group.trials, 20) << "five of each: they differ little";
    EXPECT_EQ(group.ranks[0].findings(), group.ranks[1].findings());
    EXPECT_EQ(group.ranks[0].findings().at({all_reduce, private_memory}), all[best]);
  }
}

TEST(ShmChooser, WhatIsSlowIsTriedSeldom) {
  TwoRanks slow, slower;
  for (int i = 0; i < 200; ++i) {
    slow.run(all_reduce, private_memory, costs(1, 1.2F, 2.2F, 2.2F));
    slower.run(all_reduce, private_memory, costs(1, 3.1F, 3.1F, 3.1F));
  }
  EXPECT_LT(slow.total, 200 * 1.03F) << "of 200 jobs, the first of the class";
  EXPECT_EQ(slower.trials, 4) << "once each";
}

TEST(ShmChooser, WhatIsManyTimesAsSlowWaitsUntilItCostsLittle) {
  TwoRanks group;
  const float slow = 15;
  for (int jobs = 1; jobs <= 3000; ++jobs) {
    group.run(all_reduce, private_memory, costs(1, 1.1F, slow, slow));
    const auto spread = static_cast<float>(std::max(jobs, 200));
    ASSERT_LE(group.total, static_cast<float>(jobs) + 0.03F * spread + slow) << "more than one trial too much";
  }
  EXPECT_EQ(group.ranks[0].findings().at({all_reduce, private_memory}), (ShmChoice{ShmWay::ring, ring}));
  group.run(all_reduce, private_memory, costs(1, 1.1F, slow, slow));
  EXPECT_FALSE(group.asked);
}

/// Of jobs of 5 us a trial that takes as long as ten of them would be 5 % of the first 200.
TEST(ShmChooser, WhereJobsAreShortAFirstTrialWaits) {
  const auto microseconds = [](const Cost& cost) {
    return [cost](const ShmChoice& choice) { return 1e-3F * cost(choice); };
  };
  TwoRanks slow, fast;
  for (int i = 0; i < 200; ++i) slow.run(all_reduce, private_memory, microseconds(costs(5, 5.5F, 50, 50)));
  EXPECT_LT(slow.total, 200 * 5e-3F * 1.03F);
  for (int i = 0; i < 3000; ++i) fast.run(all_reduce, private_memory, microseconds(costs(5, 5.5F, 2.5F, 3)));
  EXPECT_EQ(fast.ranks[0].findings().at({all_reduce, private_memory}), (ShmChoice{ShmWay::read, ring / 4}));
}

/// Meanwhile jobs go the way that is the fastest so far, and ask for nothing if that is the ring.
TEST(ShmChooser, WhileTrialsWaitNobodyIsAsked) {
  TwoRanks group;
  int asked = 0;
  for (int i = 0; i < 300; ++i) {
    group.run(all_reduce, private_memory, costs(1.1F, 1, 40, 40));
    if (i >= 20) asked += group.asked ? 1 : 0;
  }
  EXPECT_LE(asked, 300 / 32);
  EXPECT_GE(asked, 4) << "whether tensors lie elsewhere";
  EXPECT_EQ(group.run(all_reduce, private_memory, costs(1.1F, 1, 40, 40)).choice, (ShmChoice{ShmWay::ring, ring / 4}));
}

TEST(ShmChooser, NoiseHardlyMisleads) {
  std::mt19937 random(7);
  int right = 0;
  for (int run = 0; run < 200; ++run) {
    TwoRanks group;
    const auto noisy = [&](const ShmChoice& choice) {
      const float noise = random() % 10 == 0 ? 3.0F : 1 + 0.1F * static_cast<float>(random() % 100) / 100;
      return costs(1, 1.3F, 0.8F, 1.1F)(choice) * noise;
    };
    for (int i = 0; i < 400; ++i) group.run(all_reduce, private_memory, noisy);
    right += group.run(all_reduce, private_memory, noisy).choice == ShmChoice{ShmWay::read, ring / 4} ? 1 : 0;
  }
  EXPECT_GE(right, 190);
}

TEST(ShmChooser, AskingEndsWhenTheRingIsBestButForALookMoreAndMoreSeldom) {
  TwoRanks group;
  const auto cost = costs(1, 1.2F, 2, 2);
  for (int i = 0; i < 60; ++i) group.run(all_reduce, private_memory, cost);
  int asked = 0;
  const auto ask = [&](int jobs) {
    for (int i = 0; i < jobs; ++i) {
      group.run(all_reduce, private_memory, cost);
      asked += group.asked ? 1 : 0;
    }
    return std::exchange(asked, 0);
  };
  const int soon = ask(320);
  EXPECT_GE(soon, 2);
  EXPECT_LE(soon, 4);
  ask(2048);
  EXPECT_EQ(ask(8 * 1024), 8);
}

TEST(ShmChooser, TensorsInOtherMemoryAreNoticed) {
  TwoRanks group;
  const auto cost = costs(1, 1.2F, 2, 2, 0.5F);
  for (int i = 0; i < 60; ++i) group.run(all_reduce, private_memory, cost);
  for (int i = 0; i < 100; ++i) group.run(all_reduce, shared_memory, cost);
  EXPECT_EQ(group.run(all_reduce, shared_memory, cost).choice.way, ShmWay::mapped);
  EXPECT_TRUE(group.asked);
}

TEST(ShmChooser, ClassesAreApart) {
  TwoRanks group;
  for (int i = 0; i < 60; ++i) {
    group.run(all_reduce, private_memory, costs(1, 2, 3, 3));
    group.run(broadcast, private_memory, costs(3, 3, 2, 1));
  }
  EXPECT_EQ(group.run(all_reduce, private_memory, costs(1, 2, 3, 3)).choice, (ShmChoice{ShmWay::ring, ring}));
  EXPECT_EQ(group.run(broadcast, private_memory, costs(3, 3, 2, 1)).choice, (ShmChoice{ShmWay::read, ring}));
}

TEST(ShmChooser, JobsThatOverlapATrialAreNone) {
  TwoRanks group;
  const auto cost = costs(1, 2, 0.5F, 3);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(group.run(all_reduce, private_memory, cost).trial, 0u);
  const auto trial = group.run(all_reduce, private_memory, cost, true);
  EXPECT_EQ(trial.trial, 1u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(group.run(all_reduce, private_memory, cost).trial, 0u);
  group.complete(0, all_reduce, trial.trial, 0, 1);
  EXPECT_EQ(group.run(all_reduce, private_memory, cost).trial, 0u) << "the other rank has not completed it";
  group.complete(1, all_reduce, trial.trial, 0, 1);
  EXPECT_EQ(group.run(all_reduce, private_memory, cost).trial, 0u) << "it leads in the next one";
  EXPECT_EQ(group.run(all_reduce, private_memory, cost).trial, 2u);
}

/// Jobs of the ring run into each other, and those that ask wait for all: trials are what the ways cost in the long
/// run.
TEST(ShmChooser, ATrialOfTheRingAsksForNothing) {
  TwoRanks group;
  const auto cost = costs(1, 1, 1, 1);
  for (int i = 0; i < 60; ++i) {
    const auto answer = group.run(all_reduce, private_memory, cost);
    if (answer.trial == 0) continue;
    EXPECT_EQ(group.asked, answer.choice.way == ShmWay::read) << i;
  }
  EXPECT_EQ(group.trials, 20);
}

TEST(ShmChooser, WhatIsKnownNeedsNoTrial) {
  auto known = std::make_shared<ShmKnown>();
  known->tables[2][{all_reduce, private_memory}] = {ShmWay::read, ring / 4};
  known->tables[2][{broadcast, private_memory}] = {ShmWay::mapped, 12345};  // no such candidate
  known->tables[3][{all_reduce, private_memory}] = {ShmWay::ring, ring};    // of three ranks
  TwoRanks group(known);
  const auto cost = costs(1, 1, 1, 1);
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(group.run(all_reduce, private_memory, cost).choice, (ShmChoice{ShmWay::read, ring / 4}));
  EXPECT_EQ(group.trials, 0);
  EXPECT_TRUE(group.ranks[0].findings().empty()) << "it was not measured";
  for (int i = 0; i < 40; ++i) group.run(broadcast, private_memory, cost);
  EXPECT_EQ(group.trials, 20) << "what is known cannot be, so it is found out";
}

/// What a message costs depends on what the other rank tries at the time: now and then it is what it will be.
TEST(ShmChooser, MessagesGoTheWayThatIsFastestAtItsBest) {
  constexpr ShmClass message{OpKind::send_recv, 21, 1};
  const auto settled = [&](float ring_at_best, float read_at_best) {
    ShmChooser sender(ring, 2, nullptr);
    ShmChooser::Answer answer;
    for (int i = 0; i < 20; ++i) {
      answer = sender.answer(message, {private_memory, sender.last_trial(message)});
      if (answer.trial == 0) continue;
      const float best = answer.choice.way == ShmWay::ring ? ring_at_best : read_at_best;
      const auto took = std::chrono::microseconds(std::lround(best * (i % 5 == 0 ? 1.0F : 2.5F)));
      const std::chrono::steady_clock::time_point begun(std::chrono::seconds(i + 1));
      sender.complete(message, answer.trial, {begun, begun + took});
    }
    EXPECT_TRUE(answer.settled);
    return answer.choice.way;
  };
  EXPECT_EQ(settled(120, 90), ShmWay::read);
  EXPECT_EQ(settled(60, 90), ShmWay::ring);
  EXPECT_EQ(settled(85, 90), ShmWay::read) << "hardly faster, and both ranks must come to the same";
}

/// The first message by the large ring takes the ring's memory.
TEST(ShmChooser, NoWayOfMessagesIsDroppedAfterOneTrial) {
  constexpr ShmClass message{OpKind::send_recv, 17, 1};
  ShmChooser sender(ring, 2, nullptr);
  ShmChooser::Answer answer;
  bool by_ring = false;
  for (int i = 0; i < 20; ++i) {
    answer = sender.answer(message, {private_memory, sender.last_trial(message)});
    if (answer.trial == 0) continue;
    const bool ring_now = answer.choice.way == ShmWay::ring, first = ring_now && !std::exchange(by_ring, ring_now);
    const std::chrono::steady_clock::time_point begun(std::chrono::seconds(i + 1));
    sender.complete(message, answer.trial, {begun, begun + std::chrono::microseconds(first ? 600 : ring_now ? 6 : 13)});
  }
  EXPECT_TRUE(answer.settled);
  EXPECT_EQ(answer.choice.way, ShmWay::ring);
}

TEST(ShmChooser, AWayCanBeForced) {
  const auto forced = [](ShmWay way) { return std::make_shared<ShmKnown>(ShmKnown{way}); };
  const auto cost = costs(1, 1, 1, 1);
  TwoRanks read(forced(ShmWay::read)), mapped(forced(ShmWay::mapped)), through_ring(forced(ShmWay::ring));
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(read.run(all_reduce, private_memory, cost).choice.way, ShmWay::read);
    EXPECT_EQ(read.run(broadcast, {ShmReach::none, false}, cost).choice.way, ShmWay::ring) << "it cannot go that way";
    EXPECT_EQ(mapped.run(all_reduce, shared_memory, cost).choice.way, ShmWay::mapped);
    EXPECT_EQ(mapped.run(broadcast, private_memory, cost).choice.way, ShmWay::ring);
    EXPECT_EQ(through_ring.run(all_reduce, shared_memory, cost).choice.way, ShmWay::ring);
    EXPECT_FALSE(through_ring.asked);
  }
  EXPECT_EQ(read.trials + mapped.trials + through_ring.trials, 0);
}

}  // namespace
}  // namespace kolo
