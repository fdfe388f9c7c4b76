#include "models/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "models/error.h"

namespace kolo::models {

void Optimizer::step(double lr, double gradient_scale) {
  begin_step(lr, gradient_scale);
  for (std::size_t i = 0; i < parameters_.size(); ++i) update(i);
}

Sgd::Sgd(std::span<const Parameter> parameters, double momentum)
    : Optimizer(parameters), momentum_(static_cast<float>(momentum)) {
  if (!(momentum >= 0 && momentum < 1)) {
    throw ModelError(fmt::format("momentum cannot be {} (0 <= momentum < 1); 0.9 is usual", momentum));
  }
  for (const Parameter& parameter : parameters) velocity_.emplace_back(parameter.value.size());
}

void Sgd::begin_step(double lr, double gradient_scale) {
  lr_ = static_cast<float>(lr);
  gradient_scale_ = static_cast<float>(gradient_scale);
}

void Sgd::update(std::size_t index) {
  const Parameter& parameter = parameters()[index];
  float* const __restrict value = parameter.value.data();
  float* const __restrict velocity = velocity_[index].data();
  const float* const __restrict gradient = parameter.gradient.data();
  const float momentum = momentum_, lr = lr_, scale = gradient_scale_;
  const std::size_t elements = parameter.value.size();
  for (std::size_t i = 0; i < elements; ++i) {
    const float v = momentum * velocity[i] + scale * gradient[i];
    velocity[i] = std::abs(v) < 1e-30f ? 0.0f : v;
    value[i] -= lr * velocity[i];
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, std::span<const Parameter> parameters) {
  if (settings.name == "sgd") return std::make_unique<Sgd>(parameters, settings.momentum);
  throw ModelError(fmt::format("unknown optimizer '{}' (known: sgd); choose one of them", settings.name));
}

}  // namespace kolo::models
