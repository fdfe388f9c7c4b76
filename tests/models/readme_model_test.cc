#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "models/optim/optimizer.h"
#include "models/registry.h"
#include "tests/models/finite_differences.h"
#include "tests/models/models_testing.h"

namespace kolo::models {

ModelKind lenet_kind();  // of models/README.md

namespace {

/// A model behind its kind, with storage.
struct BoundKind {
  explicit BoundKind(const ModelSettings& settings)
      : owner(lenet_kind().make(settings)),
        model(*owner),
        values(testing::size_of_values(model)),
        gradients(testing::size_of_gradients(model)) {
    model.bind(view(std::span(values)), view(std::span(gradients)));
    model.initialise(1);
  }

  std::unique_ptr<Model> owner;
  Model& model;
  AlignedFloats values, gradients;
};

ModelSettings settings() {
  return {.classes = 3, .cnn = {.channels = 2, .height = 16, .width = 18}, .own = {{"features", 20}}};
}

TEST(ReadmeModel, HasTheNamesAndShapesThatItSays) {
  const BoundKind bound(settings());
  std::vector<std::pair<std::string, Shape>> found;
  for (const Parameter& parameter : bound.model.parameters()) found.emplace_back(parameter.name, parameter.shape);
  const std::vector<std::pair<std::string, Shape>> expected{
      {"conv1.weight", {6, 2, 5, 5}}, {"conv1.bias", {6}}, {"conv2.weight", {16, 6, 5, 5}}, {"conv2.bias", {16}},
      {"fc1.weight", {20, 64}},       {"fc1.bias", {20}},  {"fc2.weight", {3, 20}},         {"fc2.bias", {3}}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(bound.model.backward_order(), (std::vector<std::size_t>{7, 6, 5, 4, 3, 2, 1, 0}));
}

TEST(ReadmeModel, Learns) {
  BoundKind bound(settings());
  const testing::RandomExamples examples(12, 2 * 16 * 18, 3);
  EXPECT_LT(testing::worst_difference(bound.model, examples.batch(0, 12), 1e-4f,
                                      [&](const Batch& batch) { return bound.model.evaluate(batch).loss_sum; }),
            3e-2);  // kinks of ReLU and of pooling
  const auto optimizer = make_optimizer({.name = "adamw"}, bound.model.parameters());
  const double before = bound.model.evaluate(examples.batch(0, 12)).loss_sum;
  for (int step = 0; step < 60; ++step) {
    bound.model.forward_backward(examples.batch(0, 12), testing::ignore_ready);
    optimizer->step(3e-3, 1.0 / 12);
  }
  EXPECT_LT(bound.model.evaluate(examples.batch(0, 12)).loss_sum, 0.2 * before);
}

TEST(ReadmeModel, TakesItsSizesFromACheckpoint) {
  const ModelKind kind = lenet_kind();
  ModelSettings from;
  kind.sizes(
      [](std::string_view tensor, std::size_t dimension) { return tensor == "fc1.bias" && dimension == 0 ? 77 : 0; },
      from);
  EXPECT_EQ(from.own.at("features"), 77);
  EXPECT_EQ(kind.flags.at(0).usual, 120);
}

}  // namespace
}  // namespace kolo::models
