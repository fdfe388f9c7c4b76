#include "apps/train/run_state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kolo::train {
namespace {

using Json = nlohmann::ordered_json;

/// What makes two runs the same: the order in which examples come, and what the optimizer's tensors mean. Ranks may
/// change if the global batch does not.
Json identity_of(const Job& job) {
  const Options& options = job.options();
  return {{"--model", options.model},
          {"--optimizer", options.optimizer},
          {"--seed", options.seed},
          {"--order", options.order == models::Order::shuffled ? "shuffled" : "sequential"},
          {"examples per step (ranks x --batch x --accumulate)", job.examples_per_step()},
          {"examples to train on", job.corpus().train->count()},
          {"checksum of --data", fmt::format("{:016x}", job.corpus().fingerprint)},
          {"--augment", options.augment}};
}

void check_identity(const Json& before, const Job& job) {
  const Json now = identity_of(job);
  for (const auto& [name, value] : now.items()) {
    const Json was = before.contains(name) ? before.at(name) : Json();
    if (was == value) continue;
    throw UsageError(
        fmt::format("the checkpoint is of another run: its {} was {}, and now it is {}; resume with what it had, or "
                    "write to another --checkpoint",
                    name, was.dump(), value.dump()));
  }
}

}  // namespace

std::string state_of(Job& job, std::int64_t steps_done) {
  Json state{{"step", steps_done}, {"optimizer_steps", job.optimizer().steps_begun()}, {"run", identity_of(job)}};
  if (const models::LossScale* const scale = job.loss_scale()) {
    state["loss_scale"] = {{"value", scale->value()}, {"good_steps", scale->good_steps()}};
  }
  return state.dump(1) + "\n";
}

std::int64_t go_on_from(const std::string& text, Job& job) {
  try {
    const Json state = Json::parse(text);
    check_identity(state.at("run"), job);
    job.optimizer().set_steps_begun(state.at("optimizer_steps").get<std::int64_t>());
    if (job.loss_scale() != nullptr && state.contains("loss_scale")) {
      const Json& scale = state.at("loss_scale");
      job.loss_scale()->set(scale.at("value").get<float>(), scale.at("good_steps").get<std::int64_t>());
    }
    return state.at("step").get<std::int64_t>();
  } catch (const Json::exception&) {
    throw UsageError("the checkpoint's state.json is none of kolo-train; give another --checkpoint");
  }
}

}  // namespace kolo::train
