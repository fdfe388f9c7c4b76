#include "models/mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/compute/random.h"
#include "models/optim/optimizer.h"
#include "models/registry.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::BoundMlp;
using testing::error_of;
using testing::ignore_ready;
using testing::RandomExamples;

TEST(Mlp, NamesAndShapesAreThoseOfPyTorch) {
  const Mlp model({4, 3, 2});
  const std::vector<std::pair<std::string, Shape>> expected{
      {"layers.0.weight", {3, 4}}, {"layers.0.bias", {3}}, {"layers.1.weight", {2, 3}}, {"layers.1.bias", {2}}};
  ASSERT_EQ(model.parameters().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(model.parameters()[i].name, expected[i].first);
    EXPECT_EQ(model.parameters()[i].shape, expected[i].second);
  }
  EXPECT_EQ(value_elements(model), 12 + 3 + 6 + 2);
}

TEST(Mlp, ParametersFollowEachOtherInTheStorage) {
  BoundMlp mlp({4, 3, 2});
  const float* value = mlp.values.data();
  const float* gradient = mlp.gradients.data();
  for (const Parameter& parameter : mlp.model.parameters()) {
    EXPECT_EQ(parameter.value.data, value);
    EXPECT_EQ(parameter.gradient.data, gradient);
    value += parameter.value.elements();
    gradient += parameter.gradient.elements();
  }
}

// Central differences of a loss that is computed in single precision: a step of 1e-2 leaves an error of about 1e-3. A
// kink of max(0, x) may fall into an interval, so a few of all weights may be off.
TEST(Mlp, GradientsAreFiniteDifferences) {
  BoundMlp mlp({6, 8, 7, 3});
  const RandomExamples examples(5, 6, 3);
  const Batch batch = examples.batch(0, 5);
  mlp.model.forward_backward(batch, ignore_ready);
  int off = 0;
  for (std::size_t i = 0; i < mlp.values.size(); ++i) {
    constexpr float h = 1e-2f;
    const float before = mlp.values[i];
    mlp.values[i] = before + h;
    const double above = mlp.model.evaluate(batch).loss_sum;
    mlp.values[i] = before - h;
    const double below = mlp.model.evaluate(batch).loss_sum;
    mlp.values[i] = before;
    off += std::abs((above - below) / (2 * h) - mlp.gradients[i]) > 2e-3;
  }
  EXPECT_LE(off, static_cast<int>(mlp.values.size() / 30));
}

TEST(Mlp, GradientsAreAnnouncedLastLayerFirstAndFinal) {
  BoundMlp mlp({6, 8, 7, 3});
  const RandomExamples examples(5, 6, 3);
  for (const std::int64_t count : {5, 0}) {
    std::ranges::fill(mlp.gradients, NAN);
    std::vector<std::size_t> order;
    std::vector<std::vector<float>> seen(6);
    mlp.model.forward_backward(examples.batch(0, count), [&](std::size_t index) {
      order.push_back(index);
      const auto gradient = testing::floats_of(mlp.model.parameters()[index].gradient);
      seen[index].assign(gradient.begin(), gradient.end());
    });
    EXPECT_EQ(order, (std::vector<std::size_t>{5, 4, 3, 2, 1, 0}));
    EXPECT_EQ(order, mlp.model.backward_order());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(seen[i], testing::floats_of(mlp.model.parameters()[i].gradient))) << i;
    }
  }
}

TEST(Mlp, NoExamplesGiveZeroGradients) {
  BoundMlp mlp({6, 8, 3});
  std::ranges::fill(mlp.gradients, NAN);
  const BatchResult result = mlp.model.forward_backward({}, ignore_ready);
  EXPECT_EQ(result.loss_sum, 0);
  EXPECT_EQ(result.correct, 0);
  EXPECT_TRUE(std::ranges::all_of(mlp.gradients, [](float g) { return g == 0; }));
  EXPECT_EQ(mlp.model.evaluate({}).loss_sum, 0);
}

TEST(Mlp, UnevenPartsAddUpToOneBatch) {
  BoundMlp mlp({20, 16, 12, 4});
  const RandomExamples examples(13, 20, 4);
  const BatchResult whole = mlp.model.forward_backward(examples.batch(0, 13), ignore_ready);
  const AlignedFloats expected = mlp.gradients;
  BatchResult sum;
  AlignedFloats gradients(expected.size());
  for (const auto& [first, count] : {std::pair{0, 6}, {6, 1}, {7, 0}, {7, 6}}) {
    const BatchResult part = mlp.model.forward_backward(examples.batch(first, count), ignore_ready);
    sum.loss_sum += part.loss_sum;
    sum.correct += part.correct;
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += mlp.gradients[i];
  }
  EXPECT_NEAR(sum.loss_sum, whole.loss_sum, 1e-5);
  EXPECT_EQ(sum.correct, whole.correct);
  EXPECT_LT(testing::relative_difference(gradients, expected), 1e-6);
}

TEST(Mlp, PassesAddToGradientsOfAScaledLoss) {
  BoundMlp mlp({20, 16, 12, 4});
  const RandomExamples examples(13, 20, 4);
  mlp.model.forward_backward(examples.batch(0, 13), ignore_ready);
  AlignedFloats expected = mlp.gradients;
  for (float& gradient : expected) gradient *= 8;
  mlp.model.forward_backward(examples.batch(0, 6), ignore_ready, {.scale = 8});
  mlp.model.forward_backward(examples.batch(6, 0), ignore_ready, {.add = true, .scale = 8});
  mlp.model.forward_backward(examples.batch(6, 7), ignore_ready, {.add = true, .scale = 8});
  EXPECT_LT(testing::relative_difference(mlp.gradients, expected), 1e-6);
}

TEST(Mlp, EvaluateAgreesWithTraining) {
  BoundMlp mlp({20, 16, 4});
  const RandomExamples examples(9, 20, 4);
  const BatchResult trained = mlp.model.forward_backward(examples.batch(0, 9), ignore_ready);
  const BatchResult evaluated = mlp.model.evaluate(examples.batch(0, 9));
  EXPECT_EQ(trained.loss_sum, evaluated.loss_sum);
  EXPECT_EQ(trained.correct, evaluated.correct);
}

TEST(Mlp, SameBitsEveryTime) {
  const RandomExamples examples(64, 784, 10);
  AlignedFloats first;
  for (int run = 0; run < 3; ++run) {
    BoundMlp mlp({784, 128, 10});
    mlp.model.forward_backward(examples.batch(0, 32 + run), ignore_ready);  // a batch of another size changes nothing
    mlp.model.forward_backward(examples.batch(0, 64), ignore_ready);
    if (run == 0) first = mlp.gradients;
    EXPECT_EQ(mlp.gradients, first);
  }
}

TEST(Mlp, InitialWeightsAreTheSameEverywhere) {
  BoundMlp mlp({784, 32, 10}, 1), again({784, 32, 10}, 1), other({784, 32, 10}, 2);
  EXPECT_EQ(mlp.values, again.values);
  EXPECT_NE(mlp.values, other.values);
  Random random(1, 2);  // parameter 2 is the second layer's weight, with 32 inputs
  for (const float value : testing::floats_of(mlp.model.parameters()[2].value))
    ASSERT_EQ(value, random.symmetric(0.17677669529663687f));
  detail::Hash hash;
  for (const float value : mlp.values) hash.add(std::bit_cast<std::uint32_t>(value));
  EXPECT_EQ(hash.value(), 7433949058014261664u);
}

TEST(Mlp, BadSizesAndBatchesAreErrors) {
  EXPECT_EQ(error_of([] { Mlp({784}); }), "an MLP needs at least two sizes (inputs and outputs); say 784,1024,1024,10");
  EXPECT_EQ(
      error_of([] {
        Mlp({784, 0, 10});
      }),
      "layers.0 cannot have 784 inputs and 0 outputs (1 to 2^48 weights); choose other sizes of the model, or larger "
      "images");
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{784, 8, -5}, {-5, 8, 10}, {1 << 25, 1 << 24, 10}, {784, INT64_MAX, INT64_MAX}}) {
    EXPECT_NE(error_of([&] { Mlp{sizes}; }).find("choose other sizes of the model"), std::string::npos) << sizes[0];
  }
  EXPECT_EQ(error_of([] { Mlp(std::vector<std::int64_t>{}); }), error_of([] { Mlp({784}); }));
  Mlp unbound({2, 2});
  EXPECT_EQ(error_of([&] { unbound.evaluate({}); }), "the model has no storage; call bind() before the first pass");
  std::vector<float> few(5);
  EXPECT_EQ(error_of([&] { unbound.bind(view(few), view(few)); }),
            "storage of 5 values and 5 gradients was handed to a model of 6 values and 6 gradients");
  std::vector<double> wide(6);
  EXPECT_EQ(error_of([&] { unbound.bind(view(wide), view(wide)); }),
            "storage was handed to a model that is not f32, or on another device than the model");
  std::vector<float> values(6), none;
  const std::string null = "storage was handed to a model that is a null pointer; allocate it first";
  EXPECT_EQ(error_of([&] { unbound.bind(view(values), view(none.data(), {6})); }), null);
  EXPECT_EQ(error_of([&] { unbound.bind(view(none.data(), {6}), view(values)); }), null);
  EXPECT_EQ(error_of([&] { unbound.evaluate({}); }), "the model has no storage; call bind() before the first pass");
  BoundMlp mlp({4, 3});
  const RandomExamples examples(2, 5, 3);
  EXPECT_EQ(error_of([&] { mlp.model.evaluate(examples.batch(0, 2)); }),
            "a batch of 2 examples has 10 inputs and 2 targets (the model takes 4 inputs each)");
}

/// As for an evaluation, or of a program that forgot to give its gradients a size.
TEST(Mlp, WithoutGradientsHasPassesForwardOnly) {
  BoundMlp whole({4, 3});
  Mlp forward({4, 3});
  std::vector<float> none;
  forward.bind(view(std::span(whole.values)), view(none));
  const RandomExamples examples(2, 4, 3);
  EXPECT_EQ(forward.evaluate(examples.batch(0, 2)).loss_sum, whole.model.evaluate(examples.batch(0, 2)).loss_sum);
  const std::string of = " has no storage for its gradient (the model has passes forward only); give bind() gradients";
  for (const std::int64_t count : {2, 0})  // a rank without examples takes part
    EXPECT_EQ(error_of([&] { forward.forward_backward(examples.batch(0, count), ignore_ready); }),
              "'layers.0.bias'" + of);
  EXPECT_EQ(error_of([&] { (void)make_optimizer({}, forward.parameters()); }), "'layers.0.weight'" + of);
}

TEST(Registry, MakesModelsByName) {
  EXPECT_EQ(value_elements(*make_model("mlp", {.sizes = {4, 3}})), 15);
  EXPECT_EQ(make_model("mlp", {.inputs = 784, .classes = 10})->parameters().size(), 6u);
  EXPECT_EQ(error_of([] { make_model("resnet", {}); }),
            "unknown model 'resnet' (known: cnn, llama, mlp); choose one of them");
  EXPECT_EQ(error_of([] { (void)kind_of(""); }), "unknown model '' (known: cnn, llama, mlp); choose one of them");
  EXPECT_EQ(error_of([] {
              make_model("mlp", {.sizes = {100, 10}, .inputs = 784, .classes = 10});
            }),
            "sizes 100,10 do not fit the data (784 inputs and 10 classes); the first size must be 784, the last at "
            "least 10");
  EXPECT_NO_THROW(make_model("mlp", {.sizes = {784, 12}, .inputs = 784, .classes = 10}));
}

}  // namespace
}  // namespace kolo::models
