#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/settings.h"

namespace kolo::models {

/// Settings that train a model well when nothing else is said.
struct TrainingDefaults {
  std::int64_t epochs = 12;
  std::int64_t batch = 64;  ///< examples per rank and step: images, or sequences
  double lr = 0.1;
  double momentum = 0.9;
};

/// Makes a model by name, not yet bound to storage. Errors: ModelError for an unknown name (lists the known ones), for
/// sizes that make no model, and for sizes that do not fit the data.
std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings);

/// Errors: ModelError for an unknown name.
TrainingDefaults training_defaults(std::string_view name);

/// In alphabetical order.
std::vector<std::string> known_models();

}  // namespace kolo::models
