#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/job.h"
#include "models/checkpoint/manifest.h"

namespace kolo::train {

/// The text of a checkpoint's state.json: the steps done, what counts beside the tensors, and all that shapes the run.
std::string state_of(Job& job, std::int64_t steps_done);

/// What a state says of the run that this one goes on with.
struct RunState {
  std::int64_t steps_done = 0;
  std::vector<std::string> differences;  ///< "--lr was 0.1 and is now 0.05"
};

/// Restores everything but values and the optimizer's tensors from the text of a state.json; for --eval-only, nothing
/// but the step.
///
/// measured  what the checkpoint's manifest says
/// Errors: UsageError that names the first setting that must not differ and does, or says that the text is no state, or
/// of a step behind the end of the run.
RunState restore_state(const std::string& text, const std::optional<models::HeldOut>& measured, Job& job);

}  // namespace kolo::train
