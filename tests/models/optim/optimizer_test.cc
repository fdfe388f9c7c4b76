#include "models/optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "models/optim/schedule.h"
#include "models/optim/update.h"

#include "models/layers/layer.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;

/// Two parameters, of two elements and of one.
struct Bound {
  std::vector<float> values{1, 2, 3}, gradients{10, 20, 30};
  std::vector<Parameter> parameters{{"a", {2}, view(std::span(values).first(2)), view(std::span(gradients).first(2))},
                                    {"b", {1}, view(std::span(values).last(1)), view(std::span(gradients).last(1))}};
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

/// One parameter that is declared to decay, and one that is not, whatever its shape.
struct Decaying {
  std::vector<float> values{1, 1}, gradients{0.5f, 0.5f};
  std::vector<Parameter> parameters{
      {"decays", {1}, view(std::span(values).first(1)), view(std::span(gradients).first(1)), true},
      {"stays", {1, 1}, view(std::span(values).last(1)), view(std::span(gradients).last(1)), false}};
};

/// The formulas in double, for one element.
struct AdamByHand {
  double m = 0, v = 0, w = 1;
  void step(int t, double g, double lr, double decoupled, double in_gradient) {
    g += in_gradient * w;
    w -= lr * decoupled * w;
    m = 0.8 * m + 0.2 * g;
    v = 0.9 * v + 0.1 * g * g;
    w -= lr / (1 - std::pow(0.8, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.9, t)) + 1e-3);
  }
};

class AdamKinds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Names, AdamKinds, ::testing::Values("adam", "adamw"));

TEST_P(AdamKinds, FollowTheirFormulas) {
  Decaying bound;
  const bool decoupled = std::string(GetParam()) == "adamw";
  const auto optimizer = make_optimizer(
      {.name = GetParam(), .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.3}, bound.parameters);
  AdamByHand decays, stays;
  for (int t = 1; t <= 5; ++t) {
    const float g = t % 2 == 0 ? -1.0f : 2.0f;
    bound.gradients = {4 * g, 4 * g};
    optimizer->step(0.01 * t, 0.25);
    decays.step(t, g, 0.01 * t, decoupled ? 0.3 : 0, decoupled ? 0 : 0.3);
    stays.step(t, g, 0.01 * t, 0, 0);
    EXPECT_NEAR(bound.values[0], decays.w, 1e-6) << t;
    EXPECT_NEAR(bound.values[1], stays.w, 1e-6) << t;
  }
}

/// From a layer's declaration to its values, whatever the shape; of shards, too.
TEST(Optimizer, DecaysWhatALayerDeclares) {
  ParameterList list;
  list.add("a scale that decays", {4}, {}, true);
  list.add("a matrix that does not", {2, 2}, {}, false);
  list.add("a matrix that does", {2, 2}, {}, true);
  list.add("a bias", {4}, {}, false);
  for (const std::string name : {"adam", "adamw"}) {
    for (const std::vector<Shard>& shards : {std::vector<Shard>{}, std::vector<Shard>(4, {1, 2, true})}) {
      std::vector<float> values(16, 1), gradients(16);
      bind_parameters(list.all, {}, view(values), view(gradients));
      make_optimizer({.name = name, .weight_decay = 0.5}, list.all, shards)->step(0.1, 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool decays = (i / 4) % 2 == 0, mine = shards.empty() || (i % 4 == 1 || i % 4 == 2);
        EXPECT_EQ(values[i] < 1, decays && mine) << name << ": element " << i % 4 << " of " << list.all[i / 4].name;
      }
    }
  }
}

TEST(Optimizer, GoesOnFromItsState) {
  for (const std::string name : {"sgd", "adam", "adamw"}) {
    Bound through, first, second;
    const OptimizerSettings settings{.name = name, .weight_decay = 0.1};
    const auto all = make_optimizer(settings, through.parameters), before = make_optimizer(settings, first.parameters);
    for (int step = 0; step < 6; ++step) all->step(0.1, 1);
    for (int step = 0; step < 3; ++step) before->step(0.1, 1);
    second.values = first.values;
    const auto after = make_optimizer(settings, second.parameters);
    const auto from = before->state(), to = after->state();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].name, to[i].name);
      std::ranges::copy(testing::floats_of(from[i].values), testing::floats_of(to[i].values).begin());
    }
    after->set_steps_begun(before->steps_begun());
    for (int step = 0; step < 3; ++step) after->step(0.1, 1);
    EXPECT_EQ(second.values, through.values) << name;
  }
}

TEST(Optimizer, ItsStateIsNamedAfterTheParameters) {
  Bound bound;
  const auto state = make_optimizer({.name = "adamw"}, bound.parameters)->state();
  ASSERT_EQ(state.size(), 4u);
  EXPECT_EQ(state[0].name, "mean.a");
  EXPECT_EQ(state[3].name, "square.b");
  EXPECT_EQ(state[3].parameter, 1u);
  EXPECT_EQ(state[0].values.elements(), 2);
}

/// Running statistics and the like have no gradient and no state, and nothing updates them.
TEST(Optimizer, LeavesBuffersAlone) {
  for (const std::string_view name : known_optimizers) {
    Bound bound;
    bound.parameters[0].trained = false;
    bound.parameters[0].gradient = {};
    const auto optimizer = make_optimizer({.name = std::string(name), .weight_decay = 0.1}, bound.parameters);
    for (const OptimizerTensor& tensor : optimizer->state()) EXPECT_EQ(tensor.parameter, 1u);
    Update update(*optimizer, bound.parameters, 1.0, nullptr);
    update.begin(0.1, 1);
    update.arrived(1);
    EXPECT_EQ(update.finish().norm.value(), 30);
    optimizer->step(0.1, 1);
    EXPECT_EQ(bound.values[0], 1);
    EXPECT_EQ(bound.values[1], 2);
    EXPECT_NE(bound.values[2], 3);
  }
}

TEST(Update, GradientsInAnyOrderGiveTheSameBits) {
  for (const bool clips : {false, true}) {
    Bound one, other;
    Adam first(one.parameters, {}, Decay::decoupled), second(other.parameters, {}, Decay::decoupled);
    const auto clip = clips ? std::optional(2.0) : std::nullopt;
    Update in_order(first, one.parameters, clip, nullptr), backwards(second, other.parameters, clip, nullptr);
    for (int step = 0; step < 3; ++step) {
      in_order.begin(0.1, 0.5);
      backwards.begin(0.1, 0.5);
      for (const std::size_t i : {0, 1}) in_order.arrived(i);
      for (const std::size_t i : {1, 0}) backwards.arrived(i);
      const double norm = in_order.finish().norm.value();
      EXPECT_NEAR(norm, std::sqrt(1400.0) / 2, 1e-12);
      EXPECT_EQ(norm, backwards.finish().norm.value());
    }
    EXPECT_EQ(one.values, other.values);
  }
}

TEST(Update, ClipsToANorm) {
  Bound bound;
  bound.gradients = {6, 0, 8};
  Sgd sgd(bound.parameters, 0);
  Update update(sgd, bound.parameters, 2.5, nullptr);
  const auto step = [&] {
    bound.values = {0, 0, 0};
    update.begin(1, 0.5);
    for (const std::size_t i : {0, 1}) update.arrived(i);
    return update.finish().norm.value();
  };
  EXPECT_EQ(step(), 5);  // of 3, 0, 4
  EXPECT_NEAR(bound.values[0], -1.5, 1e-6);
  EXPECT_NEAR(bound.values[2], -2, 1e-6);
  bound.gradients = {0, 2, 0};
  EXPECT_EQ(step(), 1);
  EXPECT_EQ(bound.values, (std::vector<float>{0, -1, 0})) << "a small norm stays as it is";
}

TEST(Update, SkipsWhatOverflows) {
  Bound bound;
  Sgd sgd(bound.parameters, 0.9);
  LossScale scale(2);
  scale.set({.value = 4});
  Update update(sgd, bound.parameters, std::nullopt, &scale);
  const auto step = [&](const std::vector<float>& gradients) {
    std::ranges::copy(gradients, bound.gradients.begin());
    update.begin(1, 1);
    for (const std::size_t i : {1, 0}) update.arrived(i);
    return update.finish();
  };
  EXPECT_TRUE(step({1, INFINITY, 1}).skipped);
  EXPECT_EQ(bound.values, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(scale.value(), 2);
  const UpdateResult good = step({0, 2, 0});
  EXPECT_FALSE(good.skipped);
  EXPECT_EQ(good.norm.value(), 1);
  EXPECT_EQ(bound.values, (std::vector<float>{1, 1, 3}));
  EXPECT_EQ(scale.value(), 2);
  step({0, 0, 0});
  EXPECT_EQ(scale.value(), 4) << "two good steps";
  EXPECT_TRUE(step({NAN, 0, 0}).skipped);
}

TEST(Update, ClipsNothingThatIsNotFinite) {
  Bound bound;
  Sgd sgd(bound.parameters, 0.9);
  Update update(sgd, bound.parameters, 1.0, nullptr);
  for (const float poison : {NAN, INFINITY, -INFINITY}) {
    bound.gradients.assign({1, poison, 1});
    update.begin(1, 1);
    for (const std::size_t i : {1, 0}) update.arrived(i);
    EXPECT_TRUE(update.finish().skipped);
    EXPECT_EQ(bound.values, (std::vector<float>{1, 2, 3}));
  }
}

TEST(LossScale, IsExhaustedWhenTheLeastOneOverflows) {
  LossScale scale;
  scale.set({.value = 2});
  scale.note(true);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.exhausted());
  scale.note(true);
  EXPECT_TRUE(scale.exhausted());
  scale.note(false);
  EXPECT_FALSE(scale.exhausted());
}

/// Steps overlap: what the next one did with the old scale is no news.
TEST(LossScale, OfStepsThatNobodyWaitsFor) {
  LossScale scale(2);
  scale.set({.value = 8});
  scale.note_late(true, 8);
  EXPECT_EQ(scale.value(), 8);
  scale.advance();
  EXPECT_EQ(scale.value(), 4);
  scale.note_late(true, 8);
  scale.advance();
  EXPECT_EQ(scale.value(), 4);
  for (const float after : {4.0f, 8.0f}) {
    scale.note_late(false, 4);
    scale.advance();
    EXPECT_EQ(scale.value(), after);
  }
  LossScale restored(2);
  scale.note_late(true, 8);
  restored.set(scale.now(), scale.next());
  restored.advance();
  EXPECT_EQ(restored.value(), 4);
  scale.set({.value = 1});
  scale.note_late(true, 1);
  EXPECT_TRUE(scale.exhausted());
}

TEST(Optimizer, BadSettingsAreErrors) {
  Bound bound;
  EXPECT_EQ(error_of([&] { make_optimizer({.name = "adagrad"}, bound.parameters); }),
            "unknown optimizer 'adagrad' (known: adam, adamw, sgd); choose one of them");
  EXPECT_EQ(error_of([&] { make_optimizer({.momentum = 1}, bound.parameters); }),
            "momentum cannot be 1 (0 <= momentum < 1); 0.9 is usual");
  EXPECT_EQ(error_of([&] { Sgd(bound.parameters, NAN); }), "momentum cannot be nan (0 <= momentum < 1); 0.9 is usual");
  EXPECT_EQ(error_of([&] { make_optimizer({.name = "adam", .beta1 = 1}, bound.parameters); }),
            "beta1 cannot be 1 (0 <= beta1 < 1); 0.9 and 0.999 are usual");
  EXPECT_EQ(error_of([&] { make_optimizer({.name = "adamw", .eps = 0}, bound.parameters); }),
            "eps cannot be 0 (it is above 0); 1e-8 is usual");
  EXPECT_EQ(error_of([&] { make_optimizer({.name = "adamw", .weight_decay = -1}, bound.parameters); }),
            "weight decay cannot be -1 (it is at least 0); 0.1 is usual");
}

// ---- the schedule of learning rates ----

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
  expect_near(rates({.curve = Curve::linear, .lr = 1, .min_lr = 0.2, .warmup = 1, .steps = 6}, 8),
              {1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2});
}

/// The learning rates of the reference traces: 3e-3, 3 steps of warm-up, 3e-4 at step 10, which is the last of 11.
TEST(Schedule, HalfACosine) {
  expect_near(rates({.curve = Curve::cosine, .lr = 3e-3, .min_lr = 3e-4, .warmup = 3, .steps = 11}, 6),
              {1e-3, 2e-3, 3e-3, 3e-3, 0.0028663079716682656, 0.0024917112325092902});
  EXPECT_NEAR((Schedule{.curve = Curve::cosine, .lr = 1, .min_lr = 0, .warmup = 0, .steps = 9}.at(4)), 0.5, 1e-15);
  EXPECT_EQ((Schedule{.curve = Curve::cosine, .lr = 1, .min_lr = 0.25, .warmup = 3, .steps = 11}.at(10)), 0.25);
}

TEST(Schedule, NothingButWarmUp) {
  expect_near(rates({.curve = Curve::cosine, .lr = 1, .min_lr = 0.5, .warmup = 2, .steps = 2}, 4), {0.5, 1, 0.5, 0.5});
}

TEST(Schedule, OneStepBehindTheWarmUpIsTheLast) {
  expect_near(rates({.curve = Curve::linear, .lr = 1, .min_lr = 0.5, .warmup = 2, .steps = 3}, 4), {0.5, 1, 0.5, 0.5});
}

TEST(Schedule, Words) {
  for (const Curve curve : {Curve::constant, Curve::linear, Curve::cosine})
    EXPECT_EQ(curves.parse(to_string(curve)), curve);
  EXPECT_EQ(testing::error_of([] { curves.parse("cos"); }),
            "unknown schedule 'cos' (known: constant, linear, cosine); choose one of them");
}

}  // namespace
}  // namespace kolo::models
