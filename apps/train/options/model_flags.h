#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/flags.h"
#include "apps/train/options/options.h"
#include "models/model/settings.h"
#include "models/registry.h"

namespace kolo::train {

/// The names of the kinds of models that `has` is true of: "cnn, mlp".
std::string kinds_with(const std::function<bool(const models::ModelKind&)>& has, std::string_view separator = ", ");

/// A row for each flag of the kinds of models, and for --preset. They are kept as they are given: what they mean
/// depends on --model.
std::vector<cli::Flag<Options>> model_kind_flags();

/// The settings that the model's flags and --preset say, all others being the model's own.
/// Errors: UsageError for a value that a flag does not take.
models::ModelSettings given_settings(const Options& options);

/// The recipe of --preset, or that of the model. Errors: UsageError for an unknown preset.
const models::Recipe& recipe_of(const Options& options);

/// The value of a flag in settings, as text.
std::string value_text(const models::ModelFlag& flag, const models::ModelSettings& settings);

/// The presets of all kinds of models, with their sizes: the text that --preset help asks for.
std::string presets_text();

}  // namespace kolo::train
