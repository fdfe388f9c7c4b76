// Models on a device whose memory the host must not touch: whatever they do goes through Compute.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/compute/views.h"
#include "models/llama/decoder.h"
#include "tests/models/device/guarded_compute.h"
#include "tests/models/placed_model.h"

namespace kolo::models {
namespace {

constexpr Device gpu{DeviceKind::cuda, 0};

class Placed : public testing::PlacedModel {
 public:
  using PlacedModel::PlacedModel;

  /// Returns what it comes to.
  std::vector<double> train(const std::vector<Batch>& batches, std::string_view optimizer, std::optional<double> clip) {
    std::vector<double> numbers;
    PlacedModel::train(
        batches, optimizer, clip, 3, [&](double loss) { numbers.push_back(loss); },
        [&](int, double norm) { numbers.push_back(norm); });
    return numbers;
  }

  std::vector<float> values() {
    std::vector<float> all;
    for (const Parameter& parameter : model().parameters()) {
      const OnHost value(model().compute(), parameter.value);
      all.insert(all.end(), value.floats().begin(), value.floats().end());
    }
    return all;
  }
};

using OnDevice = testing::SmallModels;

TEST_P(OnDevice, TrainingGivesTheBitsOfTheHost) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    for (const std::string_view optimizer : {"sgd", "adamw"}) {
      for (const std::optional<double> clip : {std::optional<double>(), std::optional(0.5)}) {
        ModelSettings settings = GetParam().settings;
        settings.precision = precision;
        Placed host(GetParam().model, settings, {}), device(GetParam().model, settings, gpu);
        EXPECT_GT(testing::guarded_bytes(), 0u);
        EXPECT_EQ(host.values(), device.values()) << "at the beginning";
        EXPECT_EQ(host.train(batches(), optimizer, clip), device.train(batches(), optimizer, clip));
        EXPECT_EQ(host.values(), device.values());
      }
    }
  }
  EXPECT_EQ(testing::guarded_bytes(), 0u) << "memory that nobody has given back";
}

TEST_P(OnDevice, AFileGoesThere) {
  const testing::TempFolder folder;
  Placed host(GetParam().model, GetParam().settings, {}), device(GetParam().model, GetParam().settings, gpu);
  host.train(batches(), "sgd", std::nullopt);
  save_parameters(folder / "host", host.model());
  load_parameters(SafetensorsFile(folder / "host"), device.model());
  EXPECT_EQ(host.values(), device.values());
  save_parameters(folder / "device", device.model());
  EXPECT_EQ(testing::read_file(folder / "host"), testing::read_file(folder / "device"));
}

INSTANTIATE_TEST_SUITE_P(All, OnDevice, ::testing::ValuesIn(testing::small_models()),
                         [](const auto& info) { return info.param.name; });

TEST(OnDeviceToo, LogitsAndGeneration) {
  const ModelSettings settings{.llama = llama_preset("tiny")};
  Placed host("llama", settings, {}), device("llama", settings, gpu);
  auto &here = dynamic_cast<Llama&>(host.model()), &there = dynamic_cast<Llama&>(device.model());
  const testing::TokenBatch tokens(2, 20, 256);
  EXPECT_TRUE(std::ranges::equal(here.logits(tokens.batch()), there.logits(tokens.batch())));
  const Sampling sampling{.count = 30, .temperature = 0.7};
  EXPECT_EQ(generate(here, tokens.tokens, sampling), generate(there, tokens.tokens, sampling));
}

TEST(OnDeviceToo, StorageMustBeThere) {
  const auto model = make_model("mlp", {.sizes = {4, 3}, .device = gpu});
  std::vector<float> storage(15);
  EXPECT_EQ(testing::error_of([&] { model->bind(view(storage), view(storage)); }),
            "storage was handed to a model that is not f32, or on another device than the model");
}

/// So what is tested above can fail.
TEST(OnDeviceDeathTest, WhoeverTouchesItsMemoryDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Placed device("mlp", {.sizes = {4, 3}}, gpu);
        static_cast<volatile float*>(device.model().parameters()[0].value.data)[0] = 1;
      },
      "");
}

}  // namespace
}  // namespace kolo::models
