#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/llama/pretrained.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"
#include "tests/support/environment.h"

// Against numbers made with HF transformers; tolerances as the README beside them states.

namespace kolo::models {
namespace {

using testing::BoundLlama;
using testing::ignore_ready;

struct Case {
  std::string folder;
  std::int64_t batch, positions;
};

class GoldenLlama : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto shared = testing::shared_dir();
    if (shared.empty()) GTEST_SKIP() << "no reference numbers on this machine (KOLO_SHARED_DIR)";
    folder_ = shared / "golden" / GetParam().folder;
    const std::string bytes = testing::read_file(folder_ / "tokens.u16");
    stream_.resize(bytes.size() / 2);
    std::memcpy(stream_.data(), bytes.data(), bytes.size());
    const auto rows = static_cast<std::size_t>(GetParam().batch * GetParam().positions);
    tokens_.assign(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(rows));
    targets_.assign(stream_.begin() + 1, stream_.begin() + static_cast<std::ptrdiff_t>(rows) + 1);
  }

  std::unique_ptr<BoundLlama> model(bool recompute = false) const {
    const Pretrained pretrained(folder_);
    ModelSettings settings;
    EXPECT_EQ(pretrained.model(), "llama");
    pretrained.settings(settings);
    auto llama = std::make_unique<BoundLlama>(settings.llama, Precision::f32, recompute);
    pretrained.load(llama->model);
    return llama;
  }
  Batch batch() const { return {.examples = GetParam().batch, .tokens = tokens_, .targets = targets_}; }

  std::filesystem::path folder_;
  std::vector<std::uint16_t> stream_;
  std::vector<std::int32_t> tokens_, targets_;
};

TEST_P(GoldenLlama, Logits) {
  const auto llama = model();
  const SafetensorsFile stored(folder_ / "logits.safetensors");
  const auto logits = llama->model.logits(batch());
  std::vector<float> expected(logits.size());
  stored.read(*stored.find("logits"), expected);
  EXPECT_LT(testing::relative_difference(logits, expected), 1e-5);
}

TEST_P(GoldenLlama, GradientsOfTheMean) {
  const SafetensorsFile stored(folder_ / "grads.safetensors");
  for (const bool recompute : {false, true}) {
    const auto llama = model(recompute);
    const BatchResult result = llama->model.forward_backward(batch(), ignore_ready);
    EXPECT_EQ(result.targets, std::ssize(targets_));
    for (const Parameter& parameter : llama->model.parameters()) {
      const std::span<float> gradient = testing::floats_of(parameter.gradient);
      std::vector<float> expected(gradient.size());
      ASSERT_NE(stored.find(parameter.name), nullptr) << parameter.name;
      stored.read(*stored.find(parameter.name), expected);
      for (float& value : gradient) value /= static_cast<float>(result.targets);
      EXPECT_LT(testing::relative_difference(gradient, expected), 1e-5) << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenLlama, ::testing::Values(Case{"llama", 4, 32}, Case{"llama_tied_sharded", 3, 29}),
                         [](const auto& info) { return info.param.folder; });

}  // namespace
}  // namespace kolo::models
