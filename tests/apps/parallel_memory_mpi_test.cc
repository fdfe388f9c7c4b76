// What a rank's training takes in memory, ranks as processes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include <kolo/session.h>

#include "apps/memory.h"
#include "apps/parallel_model.h"
#include "models/mlp.h"
#include "models/optim/optimizer.h"
#include "models/optim/update.h"

namespace kolo::testing {
namespace {

/// Memory of this process, of which pages that it shares with other processes count in parts: those of all ranks
/// together are what the machine has given.
double proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word && word != "Pss:") {
  }
  double kilobytes = 0;
  return file >> kilobytes ? kilobytes * 1024 : 0;
}

/// Bytes a parameter, beside activations, that a rank takes for values, gradients and AdamW's state in a few steps.
double bytes_per_parameter(Session& session, std::size_t shards_from) {
  constexpr std::int64_t inputs = 784, examples = 4;
  const double before = proportional_bytes();
  models::Mlp model({inputs, 3000, 3000, 10});
  const auto parameters = static_cast<std::size_t>(gradient_elements(model));
  const SharedFloats values(session, parameters), gradients(session, parameters);
  model.bind(values.all(), gradients.all());
  model.initialise(1);
  ParallelModel parallel(session, model, {.shards_from = shards_from});
  models::Adam adam(model.parameters(), {}, models::Decay::decoupled, parallel.shards());
  models::Update update(adam, model.parameters(), std::nullopt, nullptr, parallel.shards(),
                        [&](std::size_t index) { parallel.updated(index); });
  const std::vector<float> pixels(inputs * examples, 0.5f);
  const std::vector<std::int32_t> targets(examples, 3);
  parallel.broadcast_parameters();
  for (int step = 0; step < 3; ++step) {
    const models::Batch batch{.examples = examples, .inputs = pixels, .targets = targets};
    parallel.begin_step({.next = [&] { return batch; }}, false);
    update.begin(1e-4, parallel.gradient_scale());
    parallel.finish_step([&](std::size_t index) { update.arrived(index); });
    update.finish();
  }
  parallel.complete_values();
  session.barrier();
  double taken = proportional_bytes() - before - static_cast<double>(model.activation_bytes());
  session.all_reduce("bytes", view_scalar(taken), {.op = ReduceOp::average});
  return taken / static_cast<double>(parameters);
}

/// In a process of its own each: memory that ranks share is kept for the next that needs some.
double measured(std::size_t shards_from) {
  Session session;
  std::vector<float> large(1 << 22);  // what communication takes in any case
  session.all_reduce("large", view(large));
  const double bytes = bytes_per_parameter(session, shards_from);
  if (session.rank() == 0) fmt::print("{:.2f} bytes a parameter\n", bytes);
  return bytes;
}

/// Value, gradient, and half of AdamW's two numbers.
TEST(ParallelMemory, OfTwoRanksIsTwelveBytesAParameter) {
  const double bytes = measured(16 << 10);
  EXPECT_LE(bytes, 12.5);
  EXPECT_GE(bytes, 11.5) << "this measures something else";
}

TEST(ParallelMemory, WithoutShardsIsSixteen) {
  const double bytes = measured(std::numeric_limits<std::size_t>::max());
  EXPECT_LE(bytes, 16.5);
  EXPECT_GE(bytes, 15.5);
}

}  // namespace
}  // namespace kolo::testing
