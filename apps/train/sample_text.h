#pragma once

#include <string>

#include "apps/train/job.h"

namespace kolo::train {

/// What the job's model writes behind --prompt, with the prompt: text, or the numbers of tokens that are no bytes.
/// Errors: UsageError for a prompt that is none, models::ModelError.
std::string sample_text(Job& job);

}  // namespace kolo::train
