#include "models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "models/compute/compute.h"
#include "models/llama/pretrained.h"
#include "models/util/error.h"

namespace kolo::models {

ModelKind cnn_kind();
ModelKind llama_kind();
ModelKind mlp_kind();

std::span<const ModelKind> model_kinds() {
  static const std::vector<ModelKind> kinds{cnn_kind(), llama_kind(), mlp_kind()};
  return kinds;
}

std::vector<std::string_view> known_models() {
  std::vector<std::string_view> names;
  for (const ModelKind& kind : model_kinds()) names.push_back(kind.name);
  return names;
}

const ModelKind& kind_of(std::string_view name) {
  return model_kinds()[index_of(name, known_models(), "model")];
}

std::string_view present_name(std::string_view name) {
  const auto kinds = model_kinds();
  if (std::ranges::find(kinds, name, &ModelKind::name) != kinds.end()) return name;
  const auto renamed = std::ranges::find_if(
      kinds, [&](const ModelKind& kind) { return std::ranges::find(kind.formerly, name) != kind.formerly.end(); });
  return renamed == kinds.end() ? name : renamed->name;
}

std::string_view name_in_files(const ModelKind& kind) {
  if (kind.sizes || Pretrained::knows(kind.name)) return kind.name;
  const auto first = std::ranges::find_if(kind.formerly, [&](std::string_view former) {
    return Pretrained::knows(former) && present_name(former) == kind.name;
  });
  return first == kind.formerly.end() ? kind.name : *first;
}

const Preset& preset_of(const ModelKind& kind, std::string_view name) {
  std::vector<std::string_view> names;
  for (const Preset& preset : kind.presets) names.push_back(preset.name);
  return kind.presets[index_of(name, names, "preset")];
}

double matrix_elements(const Model& model) {
  double elements = 0;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.shape.dims() == 2) elements += static_cast<double>(parameter.shape.elements());
  }
  return elements;
}

std::unique_ptr<Model> make_model(std::string_view name, const ModelSettings& settings) {
  const ModelKind& kind = kind_of(name);
  const auto recomputes = [](const ModelKind& one) {
    return std::ranges::find(one.flags, "recompute", &ModelFlag::name) != one.flags.end();
  };
  if (settings.recompute && !recomputes(kind)) {
    std::vector<std::string_view> those;
    for (const ModelKind& one : model_kinds()) {
      if (recomputes(one)) those.push_back(one.name);
    }
    throw ModelError(fmt::format("recomputation is for {} (a {} computes nothing again); leave --recompute out",
                                 fmt::join(those, ", "), name));
  }
  std::unique_ptr<Model> model = kind.make(settings);
  model->compute().allow_tf32(settings.tf32);
  return model;
}

}  // namespace kolo::models
