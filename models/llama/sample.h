#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/llama/llama.h"

namespace kolo::models {

/// How the next token is chosen.
struct Sampling {
  std::int64_t count = 0;    ///< tokens to write
  double temperature = 0.8;  ///< logits are divided by it; 0 takes the likeliest token
  std::uint64_t seed = 1;
  std::function<void(std::int64_t)> progress{};  ///< before each token how many are written; may be empty
};

/// Whether generate() can go on from it. Errors: ModelError for a prompt that is empty or holds a token that the model
/// lacks.
void check_prompt(const Llama& model, std::span<const std::int32_t> prompt);

/// Writes tokens behind a prompt, and returns them without it. Of a prompt that is longer than
/// the model's positions the last ones are looked at; once they are full, it goes on from the last half of them. The
/// same seed gives the same tokens. Errors: as check_prompt(), and ModelError for a count or temperature below 0.
std::vector<std::int32_t> generate(const Llama& model, std::span<const std::int32_t> prompt, const Sampling& sampling);

}  // namespace kolo::models
