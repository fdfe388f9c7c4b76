// Beside a pretended GPU, which knows what was asked of it; not on a card.

#include <gtest/gtest.h>

#include "models/memory_plan.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/placed_model.h"

namespace kolo::models {
namespace {

class PlannedMemory : public testing::SmallModels {
 protected:
  void SetUp() override { testing::host_devices() = {.guarded = false, .library = true}; }
};

TEST_P(PlannedMemory, IsThatOfAStepToTheByte) {
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::f16}) {
    ModelSettings settings = GetParam().settings;
    settings.precision = precision;
    settings.device = {DeviceKind::cuda, 0};
    testing::PlacedModel placed(GetParam().model, settings, settings.device);
    Model& model = placed.model();
    const auto optimizer = make_optimizer({.name = "adamw"}, model.parameters());
    model.forward(batches()[0], model.own_slot(), Purpose::training);
    model.backward(model.own_slot(), [](std::size_t) {}, {});
    optimizer->step(0, 1);
    const std::size_t held = testing::host_device_bytes();
    EXPECT_GT(held, 0u);
    EXPECT_EQ(planned_memory(GetParam().model, settings, {.name = "adamw"}, {}, batches()[0]), held);
    EXPECT_EQ(testing::host_device_bytes(), held) << "a plan takes memory";
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlannedMemory, ::testing::ValuesIn(testing::small_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kolo::models
