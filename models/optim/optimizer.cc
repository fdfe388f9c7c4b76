#include "models/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "models/util/error.h"

namespace kolo::models {

void Optimizer::step(double lr, double gradient_scale) {
  begin_step(lr, gradient_scale);
  for (std::size_t i = 0; i < parameters_.size(); ++i) update(i);
}

UpdatedTensor Optimizer::elements(std::size_t index, std::size_t first, std::size_t count) const {
  const Parameter& parameter = parameters_[index];
  return {.value = view(parameter.value.subspan(first, count)),
          .gradient = view(parameter.gradient.subspan(first, count)),
          .first = {}};
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

void Sgd::update(std::size_t index, std::size_t first, std::size_t count, const Tensor& squares) {
  UpdatedTensor tensor = elements(index, first, count);
  tensor.first = view(at(velocity_, index, first), tensor.value.shape);
  compute().sgd({.lr = lr_, .momentum = momentum_, .gradient_scale = view_scalar(gradient_scale_)}, std::array{tensor},
                squares);
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
