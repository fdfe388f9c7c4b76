#include "models/optim/schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

std::vector<double> rates(const Schedule& schedule, std::int64_t steps) {
  std::vector<double> all;
  for (std::int64_t step = 0; step < steps; ++step) all.push_back(schedule.at(step));
  return all;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-15) << i;
}

TEST(Schedule, ConstantBehindTheWarmUp) {
  expect_near(rates({.curve = Curve::constant, .lr = 0.4, .min_lr = 0.1, .warmup = 4, .steps = 6}, 8),
              {0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4});
}

TEST(Schedule, StraightDownToTheEnd) {
  expect_near(rates({.curve = Curve::linear, .lr = 1, .min_lr = 0.2, .warmup = 1, .steps = 5}, 7),
              {1, 1, 0.8, 0.6, 0.4, 0.2, 0.2});
}

/// The learning rates of the reference traces: 3e-3, 3 steps of warm-up, 3e-4 at step 10.
TEST(Schedule, HalfACosine) {
  expect_near(rates({.curve = Curve::cosine, .lr = 3e-3, .min_lr = 3e-4, .warmup = 3, .steps = 10}, 6),
              {1e-3, 2e-3, 3e-3, 3e-3, 0.0028663079716682656, 0.0024917112325092902});
  EXPECT_NEAR((Schedule{.curve = Curve::cosine, .lr = 1, .min_lr = 0, .warmup = 0, .steps = 8}.at(4)), 0.5, 1e-15);
}

TEST(Schedule, NothingButWarmUp) {
  expect_near(rates({.curve = Curve::cosine, .lr = 1, .min_lr = 0.5, .warmup = 2, .steps = 2}, 4), {0.5, 1, 0.5, 0.5});
}

TEST(Schedule, Words) {
  for (const Curve curve : {Curve::constant, Curve::linear, Curve::cosine})
    EXPECT_EQ(curves.parse(to_string(curve)), curve);
  EXPECT_EQ(testing::error_of([] { curves.parse("cos"); }),
            "unknown schedule 'cos' (known: constant, linear, cosine); choose one of them");
}

}  // namespace
}  // namespace kolo::models
