#include "models/model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/model/settings.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

std::size_t elements_of(std::span<const Parameter> parameters) {
  std::size_t elements = 0;
  for (const Parameter& parameter : parameters) elements += static_cast<std::size_t>(parameter.shape.elements());
  return elements;
}

}  // namespace

std::size_t parameter_elements(const Model& model) {
  return elements_of(model.parameters());
}

void bind_parameters(std::span<Parameter> parameters, std::span<float> values, std::span<float> gradients) {
  const std::size_t needed = elements_of(parameters);
  if (values.size() != needed || gradients.size() != needed) {
    throw ModelError(fmt::format("storage of {} values and {} gradients was handed to a model of {} parameters",
                                 values.size(), gradients.size(), needed));
  }
  for (Parameter& parameter : parameters) {
    const auto elements = static_cast<std::size_t>(parameter.shape.elements());
    parameter.value = values.first(elements);
    parameter.gradient = gradients.first(elements);
    values = values.subspan(elements);
    gradients = gradients.subspan(elements);
  }
}

std::vector<std::size_t> Model::backward_order() const {
  std::vector<std::size_t> order;
  for (std::size_t i = parameters().size(); i-- > 0;) order.push_back(i);
  return order;
}

void no_gradients(const Model& model, const GradReady& grad_ready, const Pass& pass) {
  for (const std::size_t i : model.backward_order()) {
    if (!pass.add) std::ranges::fill(model.parameters()[i].gradient, 0.0f);
    grad_ready(i);
  }
}

std::vector<Shard> whole_shards(std::span<const Parameter> parameters) {
  std::vector<Shard> shards;
  for (const Parameter& parameter : parameters) shards.push_back({.count = parameter.value.size()});
  return shards;
}

LlamaSettings llama_preset(std::string_view name) {
  if (name == "tiny") {
    return {.vocabulary = 256, .dim = 32, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 88, .positions = 64};
  }
  if (name == "small") return {};
  if (name == "base") {
    return {.vocabulary = 50000, .dim = 768, .layers = 12, .heads = 12, .kv_heads = 3, .ffn = 3072, .positions = 2048};
  }
  throw ModelError(fmt::format("unknown preset '{}' (known: tiny, small, base); choose one of them", name));
}

}  // namespace kolo::models
