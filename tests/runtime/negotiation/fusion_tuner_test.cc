// What finds the fusion threshold, against programs whose steps take a time that follows from the threshold, and noise.

#include "runtime/negotiation/fusion_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/environment.h"

namespace kolo {
namespace {

using testing::seeds;

/// How long steps take with each setting, in units of the shortest: a line, a valley, or five times that have nothing
/// to do with each other.
std::vector<double> draw_costs(std::mt19937_64& random, std::size_t settings) {
  const auto draw = [&](double most) { return std::uniform_real_distribution<>(0, most)(random); };
  std::vector<double> costs;
  const int shape = static_cast<int>(random() % 3);
  const double lowest = draw(static_cast<double>(settings) - 1), slope = draw(0.3), apart = draw(1);
  for (std::size_t i = 0; i < settings; ++i) {
    const double away = std::abs(static_cast<double>(i) - lowest);
    costs.push_back(1 + (shape == 0 ? slope * away : shape == 1 ? slope * away * away : draw(apart)));
  }
  return costs;
}

/// What a step's time is multiplied with: a function of its number, and chance.
using Noise = std::function<double(std::mt19937_64&, int step)>;

double drawn(std::mt19937_64& random, double most) {
  return std::uniform_real_distribution<>(0, most)(random);
}

struct Tuned {
  std::int64_t setting;
  int steps;  ///< until it had settled
};

/// A step is told when the next one begins, and what comes of that is used from the next but one on.
Tuned tune(const std::map<std::int64_t, double>& costs, const std::vector<std::int64_t>& settings, const Noise& noise,
           std::mt19937_64& random) {
  FusionTuner tuner(settings);
  std::int64_t in_use = settings.front();
  for (int step = 0;; ++step) {
    const std::int64_t next = tuner.next();
    if (tuner.settled() || step > 1000) return {next, step};
    tuner.took(in_use, FusionTuner::Duration(std::llround(10e6 * costs.at(in_use) * noise(random, step))));
    in_use = next;
  }
}

/// Of 2000 programs, how many in a hundred end with a setting that is slower than the best by more than 2 in a hundred.
double missed(const Noise& noise, std::size_t settings = 5) {
  const std::uint64_t count = 2000;
  std::uint64_t programs = 0, bad = 0;
  for (const std::uint64_t seed : seeds(count)) {
    std::mt19937_64 random(seed);
    auto candidates = fusion_candidates(std::int64_t{64} << 20);
    candidates.resize(settings);
    const auto drawn_costs = draw_costs(random, settings);
    std::map<std::int64_t, double> costs;
    for (std::size_t i = 0; i < settings; ++i) costs[candidates[i]] = drawn_costs[i];
    const Tuned tuned = tune(costs, candidates, noise, random);
    const double loss = costs.at(tuned.setting) / *std::ranges::min_element(drawn_costs);
    EXPECT_LE(tuned.steps, FusionTuner::most_steps) << "KOLO_TEST_SEED=" << seed;
    if (std::getenv("KOLO_TEST_SEED")) std::printf("slower than the best by %.2f%%\n", (loss - 1) * 100);
    ++programs;
    bad += loss > 1.02 ? 1 : 0;
  }
  return 100.0 * static_cast<double>(bad) / static_cast<double>(programs);
}

TEST(FusionTunerTest, FindsTheBestWithinFiftySteps) {
  static_assert(FusionTuner::most_steps + 2 <= 50,
                "the first repetition of a planned run begins, the last change follows");
  for (std::size_t settings = 1; settings <= 5; ++settings)
    EXPECT_EQ(missed([](auto&, int) { return 1.0; }, settings), 0) << settings;
}

TEST(FusionTunerTest, IsNotMisledByAnEvaluationOrByLongStepsInBetween) {
  for (const int every : {2, 3, 5, 7}) {
    EXPECT_EQ(missed([=](auto& random, int step) { return 1 + drawn(random, 0.01) + (step % every == 0 ? 4 : 0); }), 0)
        << every;
  }
}

TEST(FusionTunerTest, IsNotMisledByAColdStart) {
  EXPECT_EQ(missed([](auto& random, int step) { return 1 + drawn(random, 0.01) + (step < 4 ? 1 : 0); }), 0);
}

TEST(FusionTunerTest, SeldomMissesTheBestAmongNoise) {
  EXPECT_LE(missed([](auto& random, int) { return 1 + std::exponential_distribution<>(1 / 0.03)(random); }), 3);
  EXPECT_LE(missed([](auto& random, int) { return 1 + 0.01 * std::normal_distribution<>()(random); }), 2);
  EXPECT_LE(missed([](auto& random, int) {
              const double hiccup = drawn(random, 1) < 0.1 ? 1 + drawn(random, 3) : 0;
              return 1 + std::exponential_distribution<>(1 / 0.03)(random) + hiccup;
            }),
            4);
  EXPECT_LE(missed([](auto& random, int step) { return 1 + drawn(random, 0.01) + 0.002 * step; }), 2) << "a drift";
}

// Where steps take the same time whatever the setting, but for noise.
TEST(FusionTunerTest, MostlyStaysWhereNothingIsGained) {
  const auto settings = fusion_candidates(std::int64_t{64} << 20);
  std::map<std::int64_t, double> costs;
  for (const std::int64_t setting : settings) costs[setting] = 1;
  int stayed = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const auto noise = [](auto& chance, int) { return 1 + drawn(chance, 0.01); };
    stayed += tune(costs, settings, noise, random).setting == settings.front() ? 1 : 0;
  }
  EXPECT_GE(stayed, 990);
}

// A change of the plan that could not be made leaves steps with the old setting.
TEST(FusionTunerTest, StaysWithTheFirstWhereNoOtherCouldBeUsed) {
  FusionTuner tuner(std::vector<std::int64_t>{64, 16, 4});
  std::int64_t next = 0;
  for (int step = 0; step < FusionTuner::most_steps; ++step) {
    next = tuner.next();
    tuner.took(64, FusionTuner::Duration(1000));
  }
  EXPECT_TRUE(tuner.settled());
  EXPECT_EQ(next, 64);
}

TEST(FusionTunerTest, TriesSmallerSettingsFromTheGivenOneOn) {
  EXPECT_EQ(fusion_candidates(64 << 20), (std::vector<std::int64_t>{64 << 20, 16 << 20, 4 << 20, 1 << 20, 256 << 10}));
  EXPECT_EQ(fusion_candidates(17), (std::vector<std::int64_t>{17, 4, 1}));
}

}  // namespace
}  // namespace kolo
