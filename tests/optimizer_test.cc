#include "models/optimizer.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;

/// Two parameters, of two elements and of one.
struct Bound {
  std::vector<float> values{1, 2, 3}, gradients{10, 20, 30};
  std::vector<Parameter> parameters{{"a", {2}, std::span(values).first(2), std::span(gradients).first(2)},
                                    {"b", {1}, std::span(values).last(1), std::span(gradients).last(1)}};
};

TEST(Sgd, FollowsItsFormula) {
  Bound bound;
  bound.gradients = {2, 4, 6};
  Sgd sgd(bound.parameters, 0.5);
  sgd.step(0.25, 0.5);  // v = 1, 2, 3
  EXPECT_EQ(bound.values, (std::vector<float>{0.75f, 1.5f, 2.25f}));
  EXPECT_EQ(bound.gradients, (std::vector<float>{2, 4, 6}));
  sgd.step(0.5, 0.5);  // v = 1.5, 3, 4.5
  EXPECT_EQ(bound.values, (std::vector<float>{0, 0, 0}));
}

TEST(Sgd, ParametersInAnyOrderGiveTheSame) {
  Bound one, other;
  Sgd all(one.parameters, 0.9), by_hand(other.parameters, 0.9);
  for (int step = 0; step < 3; ++step) {
    all.step(0.1, 1);
    by_hand.begin_step(0.1, 1);
    by_hand.update(1);
    by_hand.update(0);
  }
  EXPECT_EQ(one.values, other.values);
}

TEST(Sgd, VelocityDoesNotStayAmongDenormals) {
  Bound bound;
  Sgd sgd(bound.parameters, 0.9);
  sgd.step(1, 1);
  bound.gradients = {0, 0, 0};
  for (int step = 0; step < 2000; ++step) sgd.step(1, 1);
  bound.values = {0, 0, 0};
  sgd.step(1, 1);
  EXPECT_EQ(bound.values, (std::vector<float>{0, 0, 0}));  // v is 0, not the smallest denormal
}

TEST(Optimizer, BadSettingsAreErrors) {
  Bound bound;
  EXPECT_EQ(error_of([&] { make_optimizer({.name = "adam"}, bound.parameters); }),
            "unknown optimizer 'adam' (known: sgd); choose one of them");
  EXPECT_EQ(error_of([&] { make_optimizer({.momentum = 1}, bound.parameters); }),
            "momentum cannot be 1 (0 <= momentum < 1); 0.9 is usual");
  EXPECT_EQ(error_of([&] { Sgd(bound.parameters, NAN); }), "momentum cannot be nan (0 <= momentum < 1); 0.9 is usual");
}

}  // namespace
}  // namespace kolo::models
