#include "models/model/model.h"

#include <fmt/format.h>

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

BatchResult Model::forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) {
  Slot& slot = own_slot();
  forward(batch, slot, Purpose::training);
  backward(slot, grad_ready, pass);
  return result(slot);
}

BatchResult Model::evaluate(const Batch& batch) {
  Slot& slot = own_slot();
  forward(batch, slot, Purpose::evaluation);
  return result(slot);
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
