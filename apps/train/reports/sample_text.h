#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "apps/train/job.h"

namespace kolo::train {

/// Checks --prompt before the training. Errors: UsageError for a prompt that is not token ids, models::ModelError for
/// tokens outside the vocabulary.
void check_sample(Job& job);

/// The prompt and the text that the model generates after it; token ids unless tokens are bytes.
/// Errors: as check_sample().
///
/// progress  called before each token with the number generated; may be empty
std::string sample_text(Job& job, const std::function<void(std::int64_t)>& progress);

}  // namespace kolo::train
