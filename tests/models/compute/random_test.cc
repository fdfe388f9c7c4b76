#include "models/compute/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

namespace kolo::models {
namespace {

TEST(Random, SplitMixKnownAnswers) {  // as published with the algorithm's reference code
  std::uint64_t state = 1234567;
  for (const std::uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                       4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(split_mix(state), expected);
  }
}

TEST(Random, XoshiroKnownAnswers) {  // of the reference code, from the state 1, 2, 3, 4
  Random random(std::array<std::uint64_t, 4>{1, 2, 3, 4});
  for (const std::uint64_t expected :
       std::array<std::uint64_t, 9>{11520, 0, 1509978240, 1215971899390074240, 1216172134540287360, 607988272756665600,
                                    16172922978634559625u, 8476171486693032832u, 10595114339597558777u}) {
    EXPECT_EQ(random.next(), expected);
  }
}

TEST(Random, SeedAndStreamMakeTheState) {
  std::uint64_t seed = 42;
  std::uint64_t state = split_mix(seed) + 7;
  std::array<std::uint64_t, 4> words{};
  for (std::uint64_t& word : words) word = split_mix(state);
  Random expected(words), random(42, 7);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(random.next(), expected.next());
}

TEST(Random, StreamsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
      Random random(seed, stream);
      for (int i = 0; i < 10; ++i) seen.insert(random.next());
    }
  }
  EXPECT_EQ(seen.size(), 4000u);
}

TEST(Random, BelowIsInRangeAndEven) {
  for (const std::uint64_t bound : {1u, 2u, 3u, 10u, 1000u}) {
    Random random(1, bound);
    std::vector<int> counts(bound);
    const int draws = 2000 * static_cast<int>(bound);
    for (int i = 0; i < draws; ++i) ++counts.at(random.below(bound));
    for (const int count : counts) EXPECT_NEAR(count, 2000, 300) << bound;  // more than six standard deviations
  }
  Random random(1);
  const std::uint64_t wide = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below(wide), wide);
}

TEST(Random, UniformFillsItsRange) {
  Random random(3);
  float low = 1, high = 0;
  double sum = 0;
  constexpr int draws = 100000;
  for (int i = 0; i < draws; ++i) {
    const float value = random.uniform();
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
  }
  EXPECT_GE(low, 0.0f);
  EXPECT_LT(low, 1e-3f);
  EXPECT_LT(high, 1.0f);
  EXPECT_GT(high, 1 - 1e-3f);
  EXPECT_NEAR(sum / draws, 0.5, 0.01);
  for (int i = 0; i < 1000; ++i) {
    const float value = random.symmetric(0.25f);
    EXPECT_GE(value, -0.25f);
    EXPECT_LT(value, 0.25f);
  }
}

}  // namespace
}  // namespace kolo::models
