#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/compute/views.h"
#include "models/data/dataset.h"
#include "models/layers/layered_model.h"
#include "models/llama/pretrained.h"
#include "models/optim/optimizer.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/placed_model.h"
#include "tests/support/environment.h"

// Models on CudaCompute against numbers made with PyTorch and HF transformers; tolerances as the README beside them
// states. On a pretended GPU or on a real one, as cuda_models_test.cc.

namespace kolo::models {
namespace {

using testing::host_devices;
using testing::ignore_ready;

class CudaGoldens : public ::testing::Test {
 protected:
  void SetUp() override {
    host_devices() = {.guarded = false};
    if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
    shared_ = testing::shared_dir();
    if (shared_.empty()) GTEST_SKIP() << "no reference numbers on this machine (KOLO_SHARED_DIR)";
  }

  /// The reference model of a file or folder.
  static testing::PlacedModel model(const std::filesystem::path& path) {
    const Pretrained pretrained(path);
    ModelSettings settings;
    pretrained.settings(settings);
    return testing::PlacedModel(pretrained.model(), settings, {DeviceKind::cuda, 0},
                                [&](Model& made) { pretrained.load(made); });
  }

  static std::vector<float> stored(const std::filesystem::path& file, const std::string& name) {
    const SafetensorsFile from(file);
    const auto* const found = from.find(name);
    if (found == nullptr) {
      ADD_FAILURE() << file << " lacks " << name;
      return {};
    }
    std::size_t count = 1;
    for (const std::uint64_t extent : found->shape) count *= extent;
    std::vector<float> numbers(count);
    from.read(*found, numbers);
    return numbers;
  }

  /// Logits, and gradients of the mean.
  static void expect_step(Model& of, const Batch& batch, const std::filesystem::path& folder) {
    const auto logits = dynamic_cast<LayeredModel&>(of).logits(batch);
    EXPECT_LT(testing::relative_difference(logits, stored(folder / "logits.safetensors", "logits")), 1e-5);
    const BatchResult result = of.forward_backward(batch, ignore_ready);
    for (const Parameter& parameter : of.parameters()) {
      OnHost gradient(of.compute(), parameter.gradient);
      for (float& value : gradient.floats()) value /= static_cast<float>(result.targets);
      EXPECT_LT(testing::relative_difference(gradient.floats(), stored(folder / "grads.safetensors", parameter.name)),
                1e-5)
          << parameter.name;
    }
  }

  /// The losses of ten steps of SGD, and where they lead.
  static void expect_ten_steps(Model& of, const std::filesystem::path& folder, const Dataset& data) {
    constexpr std::int64_t batch = 32;
    const auto losses =
        nlohmann::json::parse(testing::read_file(folder / "trace.json"))["sgd"].get<std::vector<double>>();
    testing::ImageBatches loader(data);
    Sgd sgd(of.parameters(), 0.9);
    for (std::int64_t step = 0; step < 10; ++step) {
      const double loss = of.forward_backward(loader.load({step * batch, batch}), ignore_ready).loss_sum / batch;
      EXPECT_NEAR(loss / losses[static_cast<std::size_t>(step)], 1, 2e-5) << step;
      sgd.step(0.05, 1.0 / batch);
    }
    for (const Parameter& parameter : of.parameters()) {
      const auto start = stored(folder / "model.safetensors", parameter.name);
      auto end = stored(folder / "after_10_sgd.safetensors", parameter.name);
      const OnHost value(of.compute(), parameter.value);
      ASSERT_EQ(start.size(), value.floats().size());
      std::vector<float> moved(value.floats().begin(), value.floats().end());
      for (std::size_t i = 0; i < start.size(); ++i) {
        moved[i] -= start[i];
        end[i] -= start[i];
      }
      EXPECT_LT(testing::relative_difference(moved, end), 1e-4) << parameter.name;
    }
  }

  std::filesystem::path shared_;
};

TEST_F(CudaGoldens, Images) {
  const Dataset data = read_idx(shared_ / "data/t10k-images-idx3-ubyte.gz", shared_ / "data/t10k-labels-idx1-ubyte.gz");
  for (const char* name : {"mlp", "cnn"}) {
    SCOPED_TRACE(name);
    const auto folder = shared_ / "golden" / name;
    testing::ImageBatches loader(data);
    auto placed = model(folder / "model.safetensors");
    expect_step(placed.model(), loader.load({0, 32}), folder);
    expect_ten_steps(placed.model(), folder, data);
  }
}

TEST_F(CudaGoldens, Llama) {
  struct Case {
    const char* name;
    std::int64_t batch, positions;
  };
  for (const Case& of : {Case{"llama", 4, 32}, Case{"llama_tied_sharded", 3, 29}}) {
    SCOPED_TRACE(of.name);
    const auto folder = shared_ / "golden" / of.name;
    const std::string bytes = testing::read_file(folder / "tokens.u16");
    std::vector<std::uint16_t> stream(bytes.size() / 2);
    std::memcpy(stream.data(), bytes.data(), bytes.size());
    const auto rows = static_cast<std::ptrdiff_t>(of.batch * of.positions);
    const std::vector<std::int32_t> tokens(stream.begin(), stream.begin() + rows);
    const std::vector<std::int32_t> targets(stream.begin() + 1, stream.begin() + rows + 1);
    auto placed = model(folder);
    expect_step(placed.model(), {.examples = of.batch, .tokens = tokens, .targets = targets}, folder);
  }
}

}  // namespace
}  // namespace kolo::models
