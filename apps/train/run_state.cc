#include "apps/train/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "apps/train/options/model_flags.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* data_checksum = "checksum of --data";
constexpr std::array<std::string_view, 5> same_flags{"--model", "--optimizer", "--seed", "--order", "--augment"};

/// What must not change on resume: what the examples' order and the optimizer's state depend on. The number of ranks
/// may change if the global batch does not.
OrderedJson identity_of(const Job& job) {
  OrderedJson identity = OrderedJson::object();
  for (const cli::Agreed& row : job.shape()) {
    if (std::ranges::count(same_flags, row.name) > 0) identity[row.name] = row.value;
  }
  identity["examples per step (ranks x --batch x --accumulate)"] = fmt::format("{}", job.examples_per_step());
  identity["examples to train on"] = fmt::format("{}", job.corpus().train->count());
  identity[data_checksum] = fmt::format("{:016x}", job.corpus().fingerprint);
  return identity;
}

/// The model, whether flags say it or --init, the data, or the tokenizer.
OrderedJson model_of(const Job& job) {
  OrderedJson model = OrderedJson::object();
  for (const models::ModelFlag& flag : models::kind_of(job.options().model).flags)
    model[fmt::format("--{}", flag.name)] = value_text(flag, job.settings());
  if (job.options().takes_tokens()) {
    const auto& scaling = job.settings().llama.rope_scaling;
    model["rope_scaling"] = scaling ? fmt::format("{}, {}, {}, {}", scaling->factor, scaling->low_freq_factor,
                                                  scaling->high_freq_factor, scaling->original_positions)
                                    : "none";
  }
  return model;
}

/// The rest, of which a difference is only said.
OrderedJson settings_of(const Job& job) {
  OrderedJson settings = OrderedJson::object();
  for (const cli::Agreed& row : job.shape()) {
    if (std::ranges::count(same_flags, row.name) == 0) settings[row.name] = row.value;
  }
  return settings;
}

/// What an evaluation depends on.
OrderedJson measured_part(const Job& job) {
  OrderedJson part = OrderedJson::object();
  for (const cli::Agreed& row : job.measured()) part[row.name] = row.value;
  part[data_checksum] = identity_of(job)[data_checksum];
  return part;
}

/// A kind of model may have been renamed.
bool is_same(std::string_view name, const std::string& was, const std::string& now) {
  return was == now || (name == "--model" && models::present_name(was) == now);
}

void check_identity(const OrderedJson& before, const OrderedJson& all) {
  for (const auto& [name, now] : all.items()) {
    const std::string was = before.at(name).get<std::string>();
    if (is_same(name, was, now.get<std::string>())) continue;
    throw UsageError(
        fmt::format("the checkpoint is of another run: its {} was {}, and now it is {}; resume with what it had, or "
                    "write to another --checkpoint",
                    name, was, now.get<std::string>()));
  }
}

void append_differences(const OrderedJson& before, const OrderedJson& all, std::vector<std::string>& lines) {
  for (const auto& [name, now] : all.items()) {
    const std::string was = before.value(name, "unknown");
    if (is_same(name, was, now.get<std::string>())) continue;
    lines.push_back(fmt::format("{} was {} and is now {}", name, was, now.get<std::string>()));
  }
}

/// What differs from these settings of a state. How flags said the model counts only where the state, an older one,
/// does not have the model itself.
std::vector<std::string> differences_of(const OrderedJson& before, const OrderedJson& state, OrderedJson settings,
                                        const Job& job) {
  std::vector<std::string> lines;
  if (!state.contains("model")) {
    append_differences(before, settings, lines);
    return lines;
  }
  const OrderedJson model = model_of(job);
  for (const auto& [name, value] : model.items()) settings.erase(name);
  settings.erase("--preset");
  append_differences(before, settings, lines);
  append_differences(state.at("model"), model, lines);
  return lines;
}

/// For an evaluation the parameters must be those of the model; what else differs is said if it makes a difference.
RunState restore_for_evaluation(const OrderedJson& state, const Job& job) {
  OrderedJson before = state.at("run");
  check_identity(before, {{"--model", job.options().model}});
  before.update(state.at("settings"));
  return {state.at("step").get<std::int64_t>(), differences_of(before, state, measured_part(job), job)};
}

/// A checkpoint behind the end of the run is only good for an evaluation.
void check_ahead(std::int64_t step, const Job& job) {
  if (step <= job.last_step()) return;
  throw UsageError(fmt::format(
      "the checkpoint is of step {}, and this run ends at step {}; give more --steps or --epochs, or --eval-only", step,
      job.last_step()));
}

/// Of how many ranks evaluations are of as many batches as that behind a checkpoint. Older checkpoints do not say it of
/// all batches: it is so where there was time for them, and not at the end of a run, whose evaluation is always of all.
std::int64_t settled_for(const models::HeldOut& measured, const OrderedJson& state, const Job& job) {
  if (measured.settled_for >= 0) return measured.settled_for;
  if (!measured.of.is_all()) return measured.of.ranks;
  const bool had_time = !state.contains("evaluations") && state.contains("last_step") &&
                        state.at("last_step") != state.at("step") &&
                        state.at("settings").value(number_of_ranks, "") == fmt::format("{}", job.ranks());
  return had_time ? job.ranks() : 0;
}

OrderedJson json_of(const models::LossScale::State& scale) {
  return {{"value", scale.value}, {"good_steps", scale.good_steps}};
}

models::LossScale::State scale_of(const OrderedJson& json) {
  return {.value = json.at("value").get<float>(), .good_steps = json.at("good_steps").get<std::int64_t>()};
}

/// So that losses compare. The first evaluation is behind the checkpoint of its step, and noted beside it.
void restore_eval_batches(const OrderedJson& state, const std::optional<models::HeldOut>& measured, Job& job) {
  if (job.eval_batches()) return;
  if (measured && settled_for(*measured, state, job) == job.ranks()) {
    job.settle_eval_batches(measured->of.batches);
  } else if (state.contains("evaluations")) {
    const OrderedJson& evaluations = state.at("evaluations");
    const auto batches = evaluations.at("batches").get<std::int64_t>();
    if (evaluations.at("ranks").get<int>() == job.ranks()) job.settle_eval_batches(batches);
  }
}

}  // namespace

std::string state_of(Job& job, std::int64_t steps_done) {
  OrderedJson state{{"step", steps_done},
                    {"optimizer_steps", job.optimizer().steps_begun()},
                    {"run", identity_of(job)},
                    {"model", model_of(job)},
                    {"settings", settings_of(job)}};
  if (const models::LossScale* const scale = job.loss_scale()) {
    state["loss_scale"] = json_of(scale->now());
    state["next_loss_scale"] = json_of(scale->next());
  }
  state["seconds_per_step"] = job.step_time().seconds();
  if (job.eval_batches()) state["evaluations"] = {{"batches", *job.eval_batches()}, {"ranks", job.ranks()}};
  return state.dump(1) + "\n";
}

RunState restore_state(const std::string& text, const std::optional<models::HeldOut>& measured, Job& job) {
  try {
    const OrderedJson state = OrderedJson::parse(text);
    if (job.options().eval_only) return restore_for_evaluation(state, job);
    check_identity(state.at("run"), identity_of(job));
    RunState run{state.at("step").get<std::int64_t>(),
                 differences_of(state.at("settings"), state, settings_of(job), job)};
    check_ahead(run.steps_done, job);
    job.optimizer().set_steps_begun(state.at("optimizer_steps").get<std::int64_t>());
    if (job.loss_scale() != nullptr && state.contains("loss_scale")) {
      const models::LossScale::State now = scale_of(state.at("loss_scale"));
      job.loss_scale()->set(now, state.contains("next_loss_scale") ? scale_of(state.at("next_loss_scale")) : now);
    }
    job.step_time() = StepTime(state.value("seconds_per_step", 0.));
    restore_eval_batches(state, measured, job);
    return run;
  } catch (const OrderedJson::exception&) {
    throw UsageError("the checkpoint's state.json was not written by kolo-train; give another --checkpoint");
  }
}

}  // namespace kolo::train
