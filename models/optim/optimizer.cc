#include "models/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "models/compute/views.h"
#include "models/util/error.h"

namespace kolo::models {

Optimizer::Optimizer(std::span<const Parameter> parameters, std::vector<Shard> shards)
    : parameters_(parameters),
      shards_(shards.empty() ? whole_shards(parameters) : std::move(shards)),
      compute_(make_compute(parameters.empty() ? Device{} : parameters.front().value.device)) {
  for (const Parameter& parameter : parameters) {
    if (parameter.trained) check_gradient(parameter);
  }
}

void Optimizer::count_step(double gradient_scale) {
  ++steps_begun_;
  compute_->fill(this->gradient_scale(), 1);
  compute_->fill(part_of(this->gradient_scale(), 0, {1}), gradient_scale);
}

void Optimizer::begin_clipped_step(double lr, double gradient_scale, double most, const Tensor& squares) {
  begin_step(lr, gradient_scale);
  compute_->clip(gradient_scale, most, squares, this->gradient_scale());
}

void Optimizer::step(double lr, double gradient_scale) {
  begin_step(lr, gradient_scale);
  update_all();
}

UpdatedTensor Optimizer::shard_of(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  const Shard& shard = shards_[index];
  return {.value = part_of(parameter.value, shard), .gradient = part_of(parameter.gradient, shard), .first = {}};
}

Optimizer::State::State(const Optimizer& optimizer) {
  Compute& compute = optimizer.compute();
  for (const Shard& shard : optimizer.shards_) {
    const Shape shape{static_cast<std::int64_t>(shard.count)};
    memory_.emplace_back();
    tensors_.push_back(memory_.back().make(compute, DType::f32, shape, "the optimizer's state"));
    compute.fill(tensors_.back(), 0);
  }
}

void Optimizer::append_state(std::string_view kind, const State& state, std::vector<OptimizerTensor>& to) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].trained) continue;
    to.push_back({fmt::format("{}.{}", kind, parameters_[i].name), i, state.of(i)});
  }
}

Sgd::Sgd(std::span<const Parameter> parameters, double momentum, std::vector<Shard> shards)
    : Optimizer(parameters, std::move(shards)), momentum_(static_cast<float>(momentum)) {
  if (!(momentum >= 0 && momentum < 1)) {
    throw ModelError(fmt::format("momentum cannot be {} (0 <= momentum < 1); 0.9 is usual", momentum));
  }
  velocity_.emplace(*this);
}

void Sgd::begin_step(double lr, double gradient_scale) {
  count_step(gradient_scale);
  lr_ = static_cast<float>(lr);
}

UpdatedTensor Sgd::updated(std::size_t index) const {
  UpdatedTensor tensor = shard_of(index);
  tensor.first = velocity_->of(index);
  return tensor;
}

SgdStep Sgd::step_of() {
  return {.lr = lr_, .momentum = momentum_, .gradient_scale = gradient_scale()};
}

void Sgd::update(std::size_t index, const Tensor& squares) {
  compute().sgd(step_of(), std::array{updated(index)}, squares);
}

void Sgd::update_all() {
  compute().sgd(step_of(), all_updated([this](std::size_t index) { return updated(index); }), {});
}

std::vector<OptimizerTensor> Sgd::state() {
  std::vector<OptimizerTensor> tensors;
  append_state("velocity", *velocity_, tensors);
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
