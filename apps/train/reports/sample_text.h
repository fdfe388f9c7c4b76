#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "apps/train/job.h"

namespace kolo::train {

/// Whether the job's model can go on from --prompt: better known before the training than behind it. Errors: UsageError
/// for a prompt that is none, models::ModelError for tokens that the model lacks.
void check_sample(Job& job);

/// What the job's model writes behind --prompt, with the prompt: text, or the numbers of tokens that are no bytes.
/// Errors: as check_sample().
///
/// told  before each token how many are written; may be empty
std::string sample_text(Job& job, const std::function<void(std::int64_t)>& told);

}  // namespace kolo::train
