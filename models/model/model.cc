#include "models/model/model.h"

#include <fmt/format.h>

#include "models/compute/views.h"
#include "models/model/settings.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

struct Elements {
  std::int64_t values = 0, gradients = 0;
};

Elements elements_of(std::span<const Parameter> parameters) {
  Elements elements;
  for (const Parameter& parameter : parameters) {
    elements.values += parameter.shape.elements();
    if (parameter.trained) elements.gradients += parameter.shape.elements();
  }
  return elements;
}

/// The next part of some storage.
class Rest {
 public:
  explicit Rest(const Tensor& storage) : storage_(storage) {}
  Tensor take(const Shape& shape) {
    const Tensor part = part_of(storage_, next_, shape);
    next_ += shape.elements();
    return part;
  }

 private:
  Tensor storage_;
  std::int64_t next_ = 0;
};

}  // namespace

std::int64_t value_elements(const Model& model) {
  return elements_of(model.parameters()).values;
}

std::int64_t gradient_elements(const Model& model) {
  return elements_of(model.parameters()).gradients;
}

void bind_parameters(std::span<Parameter> parameters, Device device, const Tensor& values, const Tensor& gradients) {
  const Elements needed = elements_of(parameters);
  const bool trains = gradients.data != nullptr || gradients.elements() > 0;
  if (values.elements() != needed.values || (trains && gradients.elements() != needed.gradients)) {
    throw ModelError(
        fmt::format("storage of {} values and {} gradients was handed to a model of {} values and {} gradients",
                    values.elements(), gradients.elements(), needed.values, needed.gradients));
  }
  for (const Tensor& storage : {values, trains ? gradients : values}) {
    if (storage.device != device || storage.dtype != DType::f32)
      throw ModelError("storage was handed to a model that is not f32, or on another device than the model");
    if (storage.data == nullptr && storage.elements() > 0)
      throw ModelError("storage was handed to a model that is a null pointer; allocate it first");
  }
  Rest of_values(values), of_gradients(gradients);
  for (Parameter& parameter : parameters) {
    parameter.value = of_values.take(parameter.shape);
    parameter.gradient = parameter.trained && trains ? of_gradients.take(parameter.shape) : Tensor{};
  }
}

void check_gradient(const Parameter& parameter) {
  if (parameter.gradient.data != nullptr || parameter.shape.elements() == 0) return;
  throw ModelError(
      fmt::format("{} has no storage for its gradient (the model has passes forward only); give bind() gradients",
                  in_quotes(parameter.name)));
}

BatchResult Model::result(const Slot& slot) {
  std::array<double, 3> numbers{};
  compute().read(sums(slot), numbers.data());
  return {.loss_sum = numbers[0],
          .correct = static_cast<std::int64_t>(numbers[1]),
          .targets = static_cast<std::int64_t>(numbers[2])};
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

Tensor part_of(const Tensor& tensor, const Shard& shard) {
  return part_of(tensor, static_cast<std::int64_t>(shard.first), {static_cast<std::int64_t>(shard.count)});
}

std::vector<Shard> whole_shards(std::span<const Parameter> parameters) {
  std::vector<Shard> shards;
  for (const Parameter& parameter : parameters) {
    shards.push_back({.count = parameter.trained ? static_cast<std::size_t>(parameter.shape.elements()) : 0});
  }
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
