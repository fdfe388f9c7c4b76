// Which way large chunks are written, learnt from what writing them costs.

#include <gtest/gtest.h>

#include "ops/shm/store_policy.h"

namespace kolo {
namespace {

constexpr std::size_t large_chunk = 256 << 10;

/// What a byte costs, in the units of the other way.
struct Costs {
  double cache, memory;
  double every_fourth = 1;  // times as much in the cache
};

/// Writes chunks at these costs. Returns how many went past the cache.
int write(StorePolicy& stores, int chunks, const Costs& costs, std::size_t chunk = large_chunk) {
  int past_cache = 0;
  for (int i = 0; i < chunks; ++i) {
    const CopyTo way = stores.choose(chunk);
    const double cost = way == CopyTo::memory ? costs.memory : costs.cache * (i % 4 == 0 ? costs.every_fourth : 1);
    stores.learn(chunk, chunk, way, cost * 1e-10 * chunk);
    past_cache += way == CopyTo::memory;
  }
  return past_cache;
}

TEST(StorePolicy, SmallChunksStayInTheCache) {
  StorePolicy stores;
  write(stores, 1000, {10, 1});
  EXPECT_EQ(stores.choose(4096), CopyTo::cache);
}

TEST(StorePolicy, ChunksThatReadersWaitForStayInTheCacheUnlessThatIsMuchSlower) {
  constexpr std::size_t small = 8 << 10;
  StorePolicy near(StorePolicy::of_small), far(StorePolicy::of_small);
  write(near, 100, {2, 1}, small);
  EXPECT_LE(write(near, 1000, {2, 1}, small), 30);
  write(far, 100, {5, 1}, small);
  EXPECT_GE(write(far, 1000, {5, 1}, small), 970);
}

TEST(StorePolicy, TheFasterWayIsUsedButForTrials) {
  StorePolicy near, far;
  write(near, 100, {1, 1.5});
  EXPECT_LE(write(near, 1000, {1, 1.5}), 30);
  write(far, 100, {5, 1});
  EXPECT_GE(write(far, 1000, {5, 1}), 970);
}

TEST(StorePolicy, TheCacheIsPreferredUntilTheOtherWayIsClearlyFaster) {
  StorePolicy stores;
  write(stores, 100, {1.3, 1});
  EXPECT_LE(write(stores, 1000, {1.3, 1}), 30);
}

TEST(StorePolicy, CostsOnAverageCount) {
  StorePolicy stores;
  write(stores, 200, {1, 0.9, 6});                   // on average 2.25
  EXPECT_GE(write(stores, 1000, {1, 0.9, 6}), 600);  // a trial may meet cheap ones
}

TEST(StorePolicy, AChangeIsNoticedWithinAPeriod) {
  StorePolicy stores;
  write(stores, 2000, {1, 1.5});
  write(stores, 100, {8, 1.5});
  EXPECT_GE(write(stores, 100, {8, 1.5}), 80);
  write(stores, 600, {1, 1.5});
  EXPECT_LE(write(stores, 100, {1, 1.5}), 20);
}

TEST(StorePolicy, AnInterruptionChangesNothing) {
  StorePolicy stores;
  write(stores, 500, {1, 1.5});
  write(stores, 1, {1000, 1000});
  EXPECT_LE(write(stores, 100, {1, 1.5}), 20);
}

}  // namespace
}  // namespace kolo
