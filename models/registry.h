#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

inline constexpr std::array<std::string_view, 3> known_models{"cnn", "llama", "mlp"};

/// Makes a model by name, not yet bound to storage. Errors: ModelError for an unknown name (lists the known ones), for
/// sizes that make no model, and for sizes that do not fit the data.
std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings);

/// Errors: ModelError for an unknown name, as make_model.
void check_known(std::string_view name);

}  // namespace kolo::models
