#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/cli/agreement.h"
#include "apps/cli/terminal.h"
#include "apps/train/checkpoints.h"

namespace kolo::train {
namespace {

using Json = nlohmann::ordered_json;

/// The settings that must not change on resume: those of the examples' order and of the optimizer's state. The number
/// of ranks may change if the global batch does not.
Json identity_of(const Job& job) {
  const Options& options = job.options();
  return {{"--model", options.model},
          {"--optimizer", options.optimizer},
          {"--seed", options.seed},
          {"--order", to_string(options.order)},
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

/// A checkpoint behind the end of the run is only good for an evaluation.
void check_ahead(std::int64_t step, const Job& job) {
  if (job.options().eval_only || step <= job.last_step()) return;
  throw UsageError(fmt::format(
      "the checkpoint is of step {}, and this run ends at step {}; give more --steps or --epochs, or --eval-only", step,
      job.last_step()));
}

/// The newest whose files agree with its manifest. Newer ones are set aside.
std::optional<models::StoredCheckpoint> newest_usable(const models::CheckpointStore& store) {
  store.remove_leftovers();
  for (const models::StoredCheckpoint& checkpoint : store.list()) {
    const auto problem = problem_of(checkpoint);
    if (!problem) return checkpoint;
    store.set_aside(checkpoint);
    cli::print_problem(
        fmt::format("the checkpoint of step {} is damaged ({}): going on from the one before it; it is now called "
                    "unusable-{}",
                    checkpoint.step, *problem, checkpoint.folder.filename().string()));
  }
  return std::nullopt;
}

/// Whole tensors for the optimizer's state, of which an optimizer has only its shards.
class WholeState {
 public:
  explicit WholeState(models::Optimizer& optimizer) : tensors_(optimizer.state()) {
    for (models::OptimizerTensor& tensor : tensors_) {
      memory_.emplace_back(static_cast<std::size_t>(tensor.shape.elements()));
      tensor.values = memory_.back();
      views_.emplace_back(memory_.back());
    }
  }
  std::span<const models::OptimizerTensor> tensors() const { return tensors_; }
  std::span<const std::span<float>> views() const { return views_; }

 private:
  std::vector<models::OptimizerTensor> tensors_;
  std::vector<models::AlignedFloats> memory_;
  std::vector<std::span<float>> views_;
};

/// Returns the state, which is empty if there is no checkpoint.
std::string load_newest(const models::CheckpointStore& store, Job& job, const WholeState& whole) {
  const auto checkpoint = newest_usable(store);
  if (!checkpoint) {
    cli::print(fmt::format("resume    no usable checkpoint in {}: starting at step 0\n", store.folder().string()));
    return {};
  }
  std::string state = load_checkpoint(*checkpoint, job.model(), whole.tensors());
  cli::print(fmt::format("resume    from step {} of {}\n", checkpoint->step, store.folder().string()));
  return state;
}

/// Restores everything but values and the optimizer's tensors. Returns the steps done. Errors: UsageError that names
/// the first setting that differs, or says that the text is no state.
std::int64_t go_on_from(const std::string& text, Job& job) {
  try {
    const Json state = Json::parse(text);
    check_identity(state.at("run"), job);
    job.optimizer().set_steps_begun(state.at("optimizer_steps").get<std::int64_t>());
    if (job.loss_scale() != nullptr && state.contains("loss_scale")) {
      const Json& scale = state.at("loss_scale");
      job.loss_scale()->set(scale.at("value").get<float>(), scale.at("good_steps").get<std::int64_t>());
    }
    const auto step = state.at("step").get<std::int64_t>();
    check_ahead(step, job);
    return step;
  } catch (const Json::exception&) {
    throw UsageError("the checkpoint's state.json was not written by kolo-train; give another --checkpoint");
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

std::int64_t resume(Session& session, const models::CheckpointStore& store, Job& job) {
  std::string state;
  std::optional<WholeState> whole;  // on rank 0
  cli::collectively(session, [&] {
    if (session.rank() > 0) return;
    whole.emplace(job.optimizer());
    state = load_newest(store, job, *whole);
  });
  state = session.broadcast_object("state of the checkpoint", state);
  if (state.empty()) return 0;
  // Values of the parameters are broadcast when the training begins.
  job.parallel().spread_state(job.optimizer(), whole ? whole->views() : std::span<const std::span<float>>());
  std::int64_t steps_done = 0;
  cli::collectively(session, [&] { steps_done = go_on_from(state, job); });
  return steps_done;
}

void check_no_checkpoints(const models::CheckpointStore& store) {
  const auto found = store.list();
  if (found.empty()) return;
  throw UsageError(fmt::format(
      "{} holds checkpoints already (the newest of step {}); add --resume to go on from it, or name another "
      "folder",
      store.folder().string(), found.front().step));
}

}  // namespace kolo::train
