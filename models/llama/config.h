#pragma once

#include <filesystem>

#include "models/model/settings.h"

namespace kolo::models {

/// The sizes of a Llama's config.json; what it does not say stays as given, but for what has a default there (as many
/// key and value heads as heads, a head of its own, a rope_theta of 10 000).
/// Errors: ModelError for a file that cannot be read, and for one that asks for what kolo's Llama does not do.
LlamaSettings llama_config(const std::filesystem::path& path, LlamaSettings settings);

}  // namespace kolo::models
