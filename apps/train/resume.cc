#include <fmt/format.h>

#include "apps/cli/agreement.h"
#include "apps/cli/terminal.h"
#include "apps/train/checkpoints.h"
#include "apps/train/run_state.h"

namespace kolo::train {
namespace {

/// The newest that its manifest vouches for. The others, which are newer, get out of the way.
std::optional<models::StoredCheckpoint> newest_usable(const models::CheckpointStore& store) {
  store.remove_leftovers();
  for (const models::StoredCheckpoint& checkpoint : store.list()) {
    const auto problem = problem_of(checkpoint);
    if (!problem) return checkpoint;
    store.set_aside(checkpoint);
    print_problem(
        fmt::format("the checkpoint of step {} is damaged ({}): going on from the one before it; it is now called "
                    "unusable-{}",
                    checkpoint.step, *problem, checkpoint.folder.filename().string()));
  }
  return std::nullopt;
}

/// Returns the state, which is empty if there is no checkpoint.
std::string load_newest(const models::CheckpointStore& store, Job& job) {
  const auto checkpoint = newest_usable(store);
  if (!checkpoint) {
    print(fmt::format("resume    no usable checkpoint in {}: starting at step 0\n", store.folder().string()));
    return {};
  }
  std::string state = load_checkpoint(*checkpoint, job.model(), job.optimizer());
  print(fmt::format("resume    from step {} of {}\n", checkpoint->step, store.folder().string()));
  return state;
}

/// Values of the parameters are broadcast when the training begins.
void broadcast_optimizer(Session& session, models::Optimizer& optimizer) {
  for (const models::OptimizerTensor& tensor : optimizer.state()) {
    session.broadcast("optimizer/" + tensor.name, view(tensor.values.data(), tensor.shape));
  }
}

}  // namespace

std::int64_t resume(Session& session, const models::CheckpointStore& store, Job& job) {
  std::string state;
  together(session, [&] {
    if (session.rank() == 0) state = load_newest(store, job);
  });
  state = session.broadcast_object("state of the checkpoint", state);
  if (state.empty()) return 0;
  broadcast_optimizer(session, job.optimizer());
  std::int64_t steps_done = 0;
  together(session, [&] { steps_done = go_on_from(state, job); });
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
