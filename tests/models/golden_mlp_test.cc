#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/data/dataset.h"
#include "models/data/sampler.h"
#include "models/optim/optimizer.h"
#include "tests/models/models_testing.h"
#include "tests/support/environment.h"

// Against numbers made with PyTorch; tolerances as the README beside them states.

namespace kolo::models {
namespace {

using testing::BoundMlp;
using testing::ignore_ready;

constexpr std::int64_t batch_size = 32;
constexpr int steps = 10;

class GoldenMlp : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto shared = testing::shared_dir();
    if (shared.empty()) GTEST_SKIP() << "no reference numbers on this machine (KOLO_SHARED_DIR)";
    folder_ = shared / "golden" / "mlp";
    data_ = read_idx(shared / "data/t10k-images-idx3-ubyte.gz", shared / "data/t10k-labels-idx1-ubyte.gz");
    trace_ = nlohmann::json::parse(testing::read_file(folder_ / "trace.json"));
  }

  SafetensorsFile file(const std::string& name) const { return SafetensorsFile(folder_ / (name + ".safetensors")); }

  /// The reference model, with the values of one of the files.
  BoundMlp model(const std::string& name) const {
    BoundMlp mlp(mlp_sizes(file("model")));
    load_parameters(file(name), mlp.model);
    return mlp;
  }

  std::filesystem::path folder_;
  Dataset data_;
  nlohmann::json trace_;
};

TEST_F(GoldenMlp, LogitsLossAndGradients) {
  BoundMlp mlp = model("model");
  testing::ImageBatches loader(data_);
  const Batch batch = loader.load({0, batch_size});

  const SafetensorsFile stored = file("logits");
  std::vector<float> logits(batch_size * 10);
  stored.read(*stored.find("logits"), logits);
  EXPECT_LT(testing::relative_difference(mlp.model.logits(batch), logits), 1e-5);

  const BatchResult result = mlp.model.forward_backward(batch, ignore_ready);
  EXPECT_NEAR(result.loss_sum / batch_size / trace_["loss"].get<double>(), 1, 2e-5);

  const BoundMlp expected = model("grads");
  for (float& value : mlp.gradients) value /= batch_size;
  for (std::size_t i = 0; i < mlp.model.parameters().size(); ++i) {
    const Parameter& parameter = mlp.model.parameters()[i];
    EXPECT_LT(testing::relative_difference(testing::floats_of(parameter.gradient),
                                           testing::floats_of(expected.model.parameters()[i].value)),
              1e-5)
        << parameter.name;
  }
}

/// Ten steps in file order; every batch is cut into the shares of `ranks` ranks, whose gradients are added in rank
/// order. Returns the losses.
std::vector<double> train(BoundMlp& mlp, const Dataset& data, int ranks, Optimizer& optimizer, double lr) {
  testing::ImageBatches loader(data);
  std::vector<Sampler> samplers;
  for (int rank = 0; rank < ranks; ++rank) {
    samplers.emplace_back(SamplerSettings{.examples = data.count(),
                                          .batch = batch_size / ranks,
                                          .ranks = ranks,
                                          .rank = rank,
                                          .order = Order::sequential});
  }
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    AlignedFloats sum(mlp.gradients.size());
    double loss = 0;
    for (Sampler& sampler : samplers) {
      loss += mlp.model.forward_backward(loader.gather(sampler.at(step).examples), ignore_ready).loss_sum;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += mlp.gradients[i];
    }
    std::ranges::copy(sum, mlp.gradients.begin());
    optimizer.step(lr, 1.0 / batch_size);
    losses.push_back(loss / batch_size);
  }
  return losses;
}

std::vector<float> minus(std::span<const float> a, std::span<const float> b) {
  std::vector<float> difference(a.begin(), a.end());
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= b[i];
  return difference;
}

TEST_F(GoldenMlp, TenStepsOfEachOptimizer) {
  const BoundMlp start = model("model");
  for (const std::string name : {"sgd", "adamw"}) {
    const BoundMlp end = model("after_10_" + name);
    const auto expected_losses = trace_[name].get<std::vector<double>>();
    for (const int ranks : {1, 2, 4}) {
      BoundMlp mlp = model("model");
      const auto optimizer = make_optimizer({.name = name, .weight_decay = 0.01}, mlp.model.parameters());
      const std::vector<double> losses = train(mlp, data_, ranks, *optimizer, name == "sgd" ? 0.05 : 1e-3);
      ASSERT_EQ(losses.size(), expected_losses.size());
      for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected_losses[i], 1, 2e-5) << i;
      const std::vector<float> moved = minus(mlp.values, start.values), expected = minus(end.values, start.values);
      EXPECT_LT(testing::relative_difference(moved, expected), 1e-4) << name << ", " << ranks << " ranks";
    }
  }
}

TEST_F(GoldenMlp, SizesComeFromTheFile) {
  EXPECT_EQ(mlp_sizes(file("model")), (std::vector<std::int64_t>{784, 32, 24, 10}));
}

TEST_F(GoldenMlp, SavingGivesTheBytesOfTheReferenceWriter) {
  const testing::TempFolder folder;
  BoundMlp copied = model("model");
  save_parameters(folder / "copy.safetensors", copied.model);
  EXPECT_EQ(testing::read_file(folder / "copy.safetensors"), testing::read_file(folder_ / "model.safetensors"));
}

}  // namespace
}  // namespace kolo::models
