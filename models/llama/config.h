#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <kolo/dtype.h>

#include "models/model/settings.h"

namespace kolo::models {

/// Sets the sizes that the text of a config.json says: of a llama that of public checkpoints, of an mlp or a cnn kolo's
/// own. Of a llama, missing numbers stay as given or have the format's default (kv_heads = heads, 2048 positions, an
/// untied head, a rope_theta of 10 000, an epsilon of 1e-6; a rope_scaling's original positions are the positions).
///
/// path   where the text is from, for errors
/// model  "mlp", "cnn" or "llama"
/// Errors: ModelError for a text that is no JSON object, a config of another model, features that kolo does not
/// support, and a rope_scaling without its factors.
void read_config(std::string_view text, const std::filesystem::path& path, std::string_view model,
                 ModelSettings& settings);

/// The text of a config.json, which read_config() takes back; a llama's is what transformers loads.
///
/// settings  with all sizes of that model
/// stored    f32 or bf16: the dtype of its parameters
/// base      a llama's config.json, of which everything is kept that is no size; empty: none
std::string config_text(std::string_view model, const ModelSettings& settings, DType stored,
                        std::string_view base = {});

}  // namespace kolo::models
