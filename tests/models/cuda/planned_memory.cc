// Beside a pretended GPU, which knows what was asked of it; not on a card.

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "models/memory_plan.h"
#include "models/util/error.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/placed_model.h"

namespace kolo::models {
namespace {

class PlannedPasses : public testing::SmallModels {
 protected:
  void SetUp() override { testing::host_devices() = {.guarded = false, .library = true}; }
};

TEST_P(PlannedPasses, IsAllThatStepsTake) {
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::f16}) {
    ModelSettings settings = GetParam().settings;
    settings.precision = precision;
    settings.device = {DeviceKind::cuda, 0};
    const MemoryPlan plan = plan_memory(GetParam().model, settings, {.name = "adamw"}, {}, batches()[0]);
    EXPECT_EQ(testing::host_device_bytes(), 0u) << "a plan takes memory";
    for (const std::size_t missing : {0, 256}) {
      testing::PlacedModel placed(GetParam().model, settings, settings.device);
      Model& model = placed.model();
      model.compute().reserve(plan.passes - missing);
      const std::size_t before = testing::host_devices().allocations;
      for (int step = 0; step < 2; ++step) model.forward_backward(batches()[0], [](std::size_t) {});
      const std::size_t taken = testing::host_devices().allocations - before;
      EXPECT_EQ(taken == 0, missing == 0) << taken;
    }
  }
}

TEST_P(PlannedPasses, GivesTheSameBits) {
  const auto train = [&](std::size_t reserved) {
    testing::PlacedModel placed(GetParam().model, GetParam().settings, {DeviceKind::cuda, 0});
    placed.model().compute().reserve(reserved);
    std::vector<double> losses;
    placed.train(
        batches(), "adamw", 0.5, 2, [&](double loss) { losses.push_back(loss); }, [](int, double) {});
    return losses;
  };
  ModelSettings settings = GetParam().settings;
  settings.device = {DeviceKind::cuda, 0};
  const std::size_t passes = plan_memory(GetParam().model, settings, {.name = "adamw"}, {}, batches()[0]).passes;
  const auto losses = train(0);
  EXPECT_EQ(train(passes), losses);
  EXPECT_EQ(train(passes / 2), losses);
}

TEST_P(PlannedPasses, CountsWhatIsOutsideThePasses) {
  ModelSettings settings = GetParam().settings;
  settings.device = {DeviceKind::cuda, 0};
  const MemoryPlan plan = plan_memory(GetParam().model, settings, {.name = "adamw"}, {}, batches()[0]);
  const testing::PlacedModel placed(GetParam().model, settings, settings.device);
  EXPECT_GE(plan.parameters, testing::host_device_bytes());
  EXPECT_LE(plan.parameters, testing::host_device_bytes() + 2 * 256);
  EXPECT_GE(plan.optimizer, plan.parameters);  // two moments
}

TEST(PlannedMemory, WhatDoesNotFitIsRefused) {
  const auto compute = make_compute({DeviceKind::cuda, 0});
  try {
    compute->reserve(std::size_t{1} << 60);
    FAIL() << "there is no such memory";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string_view(error.what()).find("a model's passes (1073741824.0 GiB)"), std::string_view::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlannedPasses, ::testing::ValuesIn(testing::small_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kolo::models
