#pragma once

#include <cstdint>
#include <string>

#include "apps/train/job.h"

namespace kolo::train {

/// What a checkpoint's state.json says of a run at `steps_done`: where it is, and the settings without which it would
/// be another.
std::string state_of(Job& job, std::int64_t steps_done);

/// Puts a run where such a text says, but for values and the optimizer's tensors. Returns the steps done.
/// Errors: UsageError that names the first setting that differs, or says that the text is none.
std::int64_t go_on_from(const std::string& state, Job& job);

}  // namespace kolo::train
