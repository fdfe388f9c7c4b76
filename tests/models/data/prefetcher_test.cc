#include "models/data/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void number(std::int64_t number, BatchStorage& to) {
  to.targets.assign(3, static_cast<std::int32_t>(number));
}

TEST(Prefetcher, HandsOutBatchesInOrder) {
  Prefetcher prefetcher(number, 5, 300);
  for (std::int32_t expected = 5; expected < 300; ++expected) {
    const Batch batch = prefetcher.next();
    ASSERT_EQ(batch.targets.size(), 3u);
    ASSERT_EQ(batch.targets[0], expected);
  }
  EXPECT_EQ(testing::error_of([&] { prefetcher.next(); }), "there are no more batches");
}

TEST(Prefetcher, RunsTwoAheadAndLeavesTheOneInUseAlone) {
  std::atomic<int> made = 0;
  Prefetcher prefetcher(
      [&](std::int64_t which, BatchStorage& to) {
        number(which, to);
        ++made;
      },
      0, 100);
  for (int used = 1; used <= 5; ++used) {
    const Batch batch = prefetcher.next();
    while (made < used + 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(made, used + 2);
    EXPECT_EQ(batch.targets[0], used - 1);
  }
}

TEST(Prefetcher, AProblemComesWithItsBatch) {
  Prefetcher prefetcher(
      [](std::int64_t which, BatchStorage&) {
        if (which == 1) throw ModelError("bad token");
      },
      0, 3);
  prefetcher.next();
  EXPECT_EQ(testing::error_of([&] { prefetcher.next(); }), "bad token");
  prefetcher.next();
}

TEST(Prefetcher, MayEndBeforeItsBatchesDo) {
  for (int taken = 0; taken < 3; ++taken) {
    Prefetcher prefetcher(number, 0, 1000);
    for (int i = 0; i < taken; ++i) prefetcher.next();
  }
  Prefetcher none(number, 7, 7);
}

/// A loader that sleeps for 80 % of a step costs at most 5 %.
TEST(Prefetcher, HidesASlowLoader) {
  constexpr std::chrono::milliseconds step(20), load(16);
  constexpr int steps = 25;
  const auto seconds_of = [&](std::chrono::milliseconds loading) {
    Prefetcher prefetcher([&](std::int64_t, BatchStorage&) { std::this_thread::sleep_for(loading); }, 0, steps + 1);
    prefetcher.next();
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) {
      std::this_thread::sleep_for(step);
      prefetcher.next();
    }
    return seconds_since(start);
  };
  double best = 2;  // on a loaded machine both vary, so they are compared when they come one after the other
  for (int tries = 0; tries < 8 && best >= 1.05; ++tries)
    best = std::min(best, seconds_of(load) / seconds_of(std::chrono::milliseconds(0)));
  EXPECT_LT(best, 1.05) << "times what it takes without loading";
}

}  // namespace
}  // namespace kolo::models
