// Models on CudaCompute beside the same models on the host: on a pretended GPU, which runs the kernels on the host
// (host_device.cc), or on a real one (card.cc).

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "models/compute/views.h"
#include "models/layers/images.h"
#include "models/layers/layered_model.h"
#include "models/layers/linear.h"
#include "models/layers/sequences.h"
#include "models/llama/decoder.h"
#include "models/optim/update.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/finite_differences.h"
#include "tests/models/placed_model.h"

namespace kolo::models {
namespace {

using testing::host_devices;

constexpr Device gpu{DeviceKind::cuda, 0};

struct Numbers {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> values, gradients;  // at the end
};

class Placed : public testing::PlacedModel {
 public:
  using PlacedModel::PlacedModel;

  Numbers train(const std::vector<Batch>& batches, std::string_view optimizer, std::optional<double> clip, int steps) {
    Numbers numbers;
    std::size_t allocations = 0;  // when the step before was over
    const auto took_step = [&](int step, double norm) {
      numbers.norms.push_back(norm);
      if (step > 0) {
        EXPECT_EQ(host_devices().allocations, allocations) << "a step takes memory";
      }
      allocations = host_devices().allocations;
    };
    PlacedModel::train(
        batches, optimizer, clip, steps, [&](double loss) { numbers.losses.push_back(loss); }, took_step);
    for (const Parameter& parameter : model().parameters()) numbers.values.push_back(read(parameter.value));
    numbers.gradients = gradients();
    return numbers;
  }
  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (const Parameter& parameter : model().parameters()) {
      if (parameter.trained) all.push_back(read(parameter.gradient));
    }
    return all;
  }

 private:
  std::vector<float> read(const Tensor& tensor) {
    const OnHost host(model().compute(), tensor);
    return {host.floats().begin(), host.floats().end()};
  }
};

class CudaModels : public testing::SmallModels {
 protected:
  void SetUp() override {
    host_devices() = {.guarded = false};
    if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
  }
  void TearDown() override { EXPECT_EQ(testing::host_device_bytes(), 0u) << "memory that nobody has given back"; }

  Numbers train(Device device, Precision precision = Precision::f32, std::string_view optimizer = "adamw",
                std::optional<double> clip = {}, int steps = 2) const {
    ModelSettings settings = GetParam().settings;
    settings.precision = precision;
    return Placed(GetParam().model, settings, device).train(batches(), optimizer, clip, steps);
  }
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * std::abs(a[i])) << i;
}

TEST_P(CudaModels, GradientsAndCurveOfTheHost) {
  const Numbers host = train({}), device = train(gpu);
  expect_near(host.losses, device.losses, 1e-5);
  expect_near(host.norms, device.norms, 1e-4);
  // Of the first step: later ones have other values.
  const Numbers first_host = train({}, Precision::f32, "sgd", {}, 1), first = train(gpu, Precision::f32, "sgd", {}, 1);
  for (std::size_t i = 0; i < first.gradients.size(); ++i) {
    EXPECT_LT(testing::relative_difference(first.gradients[i], first_host.gradients[i]), 2e-5) << i;
  }
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    EXPECT_LT(testing::relative_difference(first.values[i], first_host.values[i]), 1e-5) << i;
  }
}

TEST_P(CudaModels, GradientsAreFiniteDifferences) {
  host_devices().library = true;
  Placed placed(GetParam().model, GetParam().settings, gpu);
  const double worst = testing::worst_difference(
      placed.model(), batches()[0], 1e-3f,
      [&](const Batch& batch) { return placed.model().forward_backward(batch, [](std::size_t) {}).loss_sum; }, 1);
  EXPECT_LT(worst, 2e-2);
}

TEST_P(CudaModels, CurveIn16Bits) {
  host_devices().library = true;
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    const int steps = precision == Precision::bf16 ? 2 : 1;
    expect_near(train({}, precision, "sgd", 0.5, steps).losses, train(gpu, precision, "sgd", 0.5, steps).losses, 1e-3);
  }
}

/// What a program would wait for comes later.
TEST_P(CudaModels, AStepWaitsForNothing) {
  host_devices().library = true;
  Placed placed(GetParam().model, GetParam().settings, gpu);
  Model& model = placed.model();
  const auto optimizer = make_optimizer({.name = "adamw"}, model.parameters());
  LossScale scale;
  scale.set({.value = 1});
  Update update(*optimizer, model.parameters(), 0.5, &scale);
  const auto batch = batches()[0];
  std::vector<double> losses, norms;
  for (int step = 0; step < 3; ++step) {
    const std::size_t waits = host_devices().waits, beside = host_devices().copies_beside;
    update.begin(1e-2, 0.1);
    model.forward(batch, model.own_slot(), Purpose::training);
    model.backward(model.own_slot(), [&](std::size_t index) { update.arrived(index); }, {});
    const auto loss = model.compute().read_later(model.sums(model.own_slot()));
    EXPECT_TRUE(update.finish().late);
    EXPECT_EQ(host_devices().waits, waits) << "step " << step;
    if (host_devices().launches > 0) {  // a real GPU counts nothing
      EXPECT_EQ(host_devices().copies_beside - beside, step > 0 ? 2u : 0u) << "inputs and targets arrive beside a step";
    }
    losses.push_back(*static_cast<const double*>(loss->wait()));
    norms.push_back(update.late_result().norm.value());
  }
  Placed again(GetParam().model, GetParam().settings, gpu);
  const auto optimizer_again = make_optimizer({.name = "adamw"}, again.model().parameters());
  Update update_again(*optimizer_again, again.model().parameters(), 0.5, nullptr);
  for (int step = 0; step < 3; ++step) {
    update_again.begin(1e-2, 0.1);
    const auto result = again.model().forward_backward(batch, [&](std::size_t index) { update_again.arrived(index); });
    EXPECT_EQ(result.loss_sum, losses[static_cast<std::size_t>(step)]);
    (void)update_again.finish();
    EXPECT_EQ(update_again.late_result().norm.value(), norms[static_cast<std::size_t>(step)]);
  }
}

/// Of a real GPU: two runs. A thread that reads what another one of the same run() writes, or a block what another one
/// writes, would see other numbers.
TEST_P(CudaModels, TheOrderOfThreadsAndBlocksChangesNoBit) {
  const Numbers before = train(gpu, Precision::bf16, "adamw", 0.5);
  host_devices().reversed = true;
  const Numbers after = train(gpu, Precision::bf16, "adamw", 0.5);
  EXPECT_EQ(before.losses, after.losses);
  EXPECT_EQ(before.norms, after.norms);
  EXPECT_EQ(before.values, after.values);
  EXPECT_EQ(before.gradients, after.gradients);
}

/// Layers pass each other bf16. Inputs are rounded, too, and what a stage without a norm convolves is not kept.
TEST(CudaActivations, AreSmallerInBf16) {
  ModelSettings settings;
  settings.sizes = {4, 512, 512, 4};
  settings.cnn = {.channels = 1, .height = 9, .width = 9, .filters = 32, .dense = 32, .classes = 3};
  const std::vector<std::int32_t> targets(8);
  for (const auto& [model, norm, inputs, most] :
       {std::tuple{"mlp", false, 4, 0.75}, {"cnn", false, 81, 0.95}, {"cnn", true, 81, 0.75}}) {
    settings.cnn.batch_norm = norm;
    const std::vector<float> images(static_cast<std::size_t>(8 * inputs), 0.5f);
    const auto kept = [&, model = model](Precision precision) {
      settings.precision = precision;
      Placed placed(model, settings, gpu);
      placed.model().forward({.examples = 8, .inputs = images, .tokens = {}, .targets = targets},
                             placed.model().own_slot(), Purpose::training);
      return static_cast<double>(placed.model().activation_bytes());
    };
    EXPECT_LT(kept(Precision::bf16), most * kept(Precision::f32)) << model << norm;
  }
}

/// Layers of all kinds behind each other, some of which take bf16.
class Mixed final : public LayeredModel {
 public:
  Mixed(Precision precision, Device device) : LayeredModel({.image = {1, 9, 11}}, precision, device) {
    add<Conv2d>("conv", 1, 4, Conv2dOptions{.padding = 1});
    add<MaxPool>(Pooling{.window = 2});
    add<NormedConv2d>("normed", "norm", 4, 6, Conv2dOptions{.padding = 1, .activation = Activation::relu});
    add<Linear>("first", 6 * 4 * 5, 12, Activation::relu);
    add<Linear>("plain", 12, 12, Activation::none);
    add<Linear>("wide", 12, 16, Activation::none);
    auto inner = std::make_unique<Sequential>();
    auto rms = std::make_unique<RmsNorm>(list(), "rms", 16, 1e-5);
    inner->add(std::make_unique<Linear>(list(), "up", 16, 24, Activation::relu));
    inner->add(std::make_unique<Linear>(list(), "down", 24, 16, Activation::none));
    add(std::make_unique<Residual>(std::move(rms), std::move(inner)));
    add<Linear>("last", 16, 3, Activation::none);
    end<CrossEntropy>(3);
  }
};

/// Beside f32: 1 %, and ten times as much where rounding makes a relu let a number through, of so few.
TEST(CudaLayers, HaveTheGradientsOfTheHostInBf16) {
  for (const bool library : {false, true}) {
    host_devices() = {.guarded = false, .library = library};
    if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
    const testing::RandomExamples examples(6, 99, 3);
    const auto gradients = [&](Precision precision, Device device) {
      Placed placed(std::make_unique<Mixed>(precision, device));
      for (const bool add : {false, true})
        placed.model().forward_backward(examples.batch(add ? 3 : 0, 3), [](std::size_t) {}, {.add = add});
      return placed.gradients();
    };
    const auto host = gradients(Precision::f32, {}), device = gradients(Precision::bf16, gpu);
    ASSERT_EQ(host.size(), device.size());
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_LT(testing::relative_difference(device[i], host[i]), 0.25) << "of parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaModels, ::testing::ValuesIn(testing::small_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kolo::models
