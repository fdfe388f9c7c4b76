// A model on GPUs and its session, over fakes that run everything later; ranks are threads.

#include <gtest/gtest.h>

#include <vector>

#include "apps/memory.h"
#include "apps/parallel_model.h"
#include "models/compute/views.h"
#include "models/data/dataset.h"
#include "models/optim/update.h"
#include "models/registry.h"
#include "tests/models/models_testing.h"
#include "tests/ops/gpu/gpu_ranks.h"

namespace kolo::testing {
namespace {

struct ParallelDevice : GpuRanks {};
INSTANTIATE_TEST_SUITE_P(Over, ParallelDevice, ::testing::Values("nccl", "staged"),
                         [](const auto& info) { return info.param; });

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> values;
};

/// Some steps of two micro-batches, of which the last rank has smaller ones.
Trained train(Session& session, Device device, const ParallelSettings& parallel_settings, std::optional<double> clip) {
  constexpr int steps = 4;
  static const models::Dataset digits = models::render_digits({.train = 24, .held_out = 0}).train;
  models::ModelSettings settings;
  settings.sizes = {784, 12, 10};
  settings.device = device;
  const auto model = models::make_model("mlp", settings);
  const SharedFloats values(session, static_cast<std::size_t>(models::value_elements(*model)), device);
  const SharedFloats gradients(session, static_cast<std::size_t>(models::gradient_elements(*model)), device);
  model->bind(values.all(), gradients.all());
  model->initialise(static_cast<std::uint64_t>(session.rank()));
  ParallelModel parallel(session, *model, parallel_settings);
  parallel.broadcast_parameters();
  models::Adam adam(model->parameters(), {}, models::Decay::decoupled, parallel.shards());
  models::Update update(adam, model->parameters(), clip, nullptr, parallel.shards(),
                        [&](std::size_t index) { parallel.updated(index); });
  const auto sum = [&](double value) {
    session.all_reduce("sum", view_scalar(value));
    return value;
  };

  Trained trained;
  ImageBatches loader(digits);
  const std::int64_t each = session.rank() + 1 == session.size() ? 2 : 4;
  for (int step = 0; step < steps; ++step) {
    std::int64_t first = session.rank() * 8;
    const auto next = [&] {
      const models::Batch batch = loader.load({first, each});
      first += each;
      return batch;
    };
    const double targets = 8.0 * session.size() - 4;
    parallel.begin_step({.next = next, .micro_batches = 2, .targets = targets}, false);
    update.begin(0.01, parallel.gradient_scale());
    const StepResult result = parallel.finish_step([&](std::size_t index) { update.arrived(index); });
    EXPECT_EQ(result.targets, targets);
    EXPECT_EQ(result.late, device.kind != DeviceKind::cpu);
    if (!result.late || step > 0) trained.losses.push_back(result.loss_sum);
    models::UpdateResult updated =
        update.finish([&](const Tensor& numbers, const Tensor& sums) { parallel.sum(numbers, sums); });
    EXPECT_EQ(updated.late, result.late);
    if (updated.late) updated = update.late_result();
    if (!updated.norm.summed) updated.norm.shard_squares = sum(updated.norm.shard_squares);
    trained.norms.push_back(updated.norm.value());
    EXPECT_FALSE(updated.skipped);
    if (result.late && step + 1 == steps) trained.losses.push_back(parallel.late_loss());
  }
  parallel.complete_values();
  for (const models::Parameter& parameter : model->parameters()) {
    const models::OnHost value(model->compute(), parameter.value);
    trained.values.emplace_back(value.floats().begin(), value.floats().end());
  }
  return trained;
}

/// On GPUs, whatever runs late, a training is that of the host: losses come a step later.
TEST_P(ParallelDevice, TrainsAsOnTheHost) {
  for (const std::optional<double> clip : {std::optional<double>(), std::optional(0.5)}) {
    for (const std::size_t shards_from : {50U, 100'000U}) {
      run_ranks(
          2,
          [&](Session& session) {
            const ParallelSettings settings{.shards_from = shards_from};
            const Trained host = train(session, {}, settings, clip),
                          gpu = train(session, session.device(), settings, clip);
            ASSERT_EQ(session.device().kind, DeviceKind::cuda);
            ASSERT_EQ(host.losses.size(), gpu.losses.size());
            for (std::size_t i = 0; i < host.losses.size(); ++i) {
              EXPECT_NEAR(host.losses[i], gpu.losses[i], 1e-4 * host.losses[i]) << i;
              EXPECT_NEAR(host.norms[i], gpu.norms[i], 1e-3 * host.norms[i]) << i;
            }
            for (std::size_t i = 0; i < host.values.size(); ++i) {
              EXPECT_LT(relative_difference(gpu.values[i], host.values[i]), 1e-2) << i;
            }
          },
          config);
    }
  }
}

}  // namespace
}  // namespace kolo::testing
