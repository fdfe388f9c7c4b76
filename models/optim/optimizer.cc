#include "models/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "models/util/error.h"

namespace kolo::models {

void Optimizer::step(double lr, double gradient_scale) {
  begin_step(lr, gradient_scale);
  for (std::size_t i = 0; i < parameters_.size(); ++i) update(i);
}

std::vector<AlignedFloats> Optimizer::zeros() const {
  std::vector<AlignedFloats> tensors;
  for (const Shard& shard : shards_) tensors.emplace_back(shard.count);
  return tensors;
}

void Optimizer::append_state(std::string_view kind, std::vector<AlignedFloats>& tensors,
                             std::vector<OptimizerTensor>& to) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    to.push_back({fmt::format("{}.{}", kind, parameters_[i].name), parameters_[i].shape, tensors[i]});
  }
}

Sgd::Sgd(std::span<const Parameter> parameters, double momentum, std::vector<Shard> shards)
    : Optimizer(parameters, std::move(shards)), momentum_(static_cast<float>(momentum)) {
  if (!(momentum >= 0 && momentum < 1)) {
    throw ModelError(fmt::format("momentum cannot be {} (0 <= momentum < 1); 0.9 is usual", momentum));
  }
  velocity_ = zeros();
}

void Sgd::begin_step(double lr, double gradient_scale) {
  count_step();
  lr_ = static_cast<float>(lr);
  gradient_scale_ = static_cast<float>(gradient_scale);
}

void Sgd::update(std::size_t index, std::size_t first, std::size_t count) {
  const Parameter& parameter = parameters()[index];
  float* const __restrict value = parameter.value.data() + first;
  float* const __restrict velocity = at(velocity_, index, first);
  const float* const __restrict gradient = parameter.gradient.data() + first;
  const float momentum = momentum_, lr = lr_, scale = gradient_scale_;
  for (std::size_t i = 0; i < count; ++i) {
    const float v = momentum * velocity[i] + scale * gradient[i];
    velocity[i] = std::abs(v) < 1e-30f ? 0.0f : v;
    value[i] -= lr * velocity[i];
  }
}

std::vector<OptimizerTensor> Sgd::state() {
  std::vector<OptimizerTensor> tensors;
  append_state("velocity", velocity_, tensors);
  return tensors;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, std::span<const Parameter> parameters,
                                          std::vector<Shard> shards) {
  (void)index_of(settings.name, known_optimizers, "optimizer");
  if (settings.name == "sgd") return std::make_unique<Sgd>(parameters, settings.momentum, std::move(shards));
  const AdamSettings adam{settings.beta1, settings.beta2, settings.eps, settings.weight_decay};
  if (settings.name == "adam") return std::make_unique<Adam>(parameters, adam, Decay::in_gradient, std::move(shards));
  return std::make_unique<Adam>(parameters, adam, Decay::decoupled, std::move(shards));
}

}  // namespace kolo::models
