#include "models/optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "models/util/error.h"

namespace kolo::models {
namespace {

void check_beta(const char* name, double beta) {
  if (beta >= 0 && beta < 1) return;
  throw ModelError(fmt::format("{} cannot be {} (0 <= {} < 1); 0.9 and 0.999 are usual", name, beta, name));
}

}  // namespace

Adam::Adam(std::span<const Parameter> parameters, const AdamSettings& settings, Decay decay, std::vector<Shard> shards)
    : Optimizer(parameters, std::move(shards)), settings_(settings), decay_(decay) {
  check_beta("beta1", settings.beta1);
  check_beta("beta2", settings.beta2);
  if (!(settings.eps > 0 && std::isfinite(settings.eps))) {
    throw ModelError(fmt::format("eps cannot be {} (it is above 0); 1e-8 is usual", settings.eps));
  }
  if (!(settings.weight_decay >= 0 && std::isfinite(settings.weight_decay))) {
    throw ModelError(fmt::format("weight decay cannot be {} (it is at least 0); 0.1 is usual", settings.weight_decay));
  }
  mean_ = zeros();
  square_ = zeros();
}

void Adam::begin_step(double lr, double gradient_scale) {
  count_step();
  lr_ = lr;
  gradient_scale_ = static_cast<float>(gradient_scale);
}

void Adam::update(std::size_t index, std::size_t first, std::size_t count) {
  const Parameter& parameter = parameters()[index];
  float* const __restrict value = parameter.value.data() + first;
  float* const __restrict mean = at(mean_, index, first);
  float* const __restrict square = at(square_, index, first);
  const float* const __restrict gradient = parameter.gradient.data() + first;
  const auto t = static_cast<double>(steps_begun());
  const double weight_decay = parameter.shape.extents().size() > 1 ? settings_.weight_decay : 0;
  const auto kept = static_cast<float>(decay_ == Decay::decoupled ? 1 - lr_ * weight_decay : 1);
  const auto pull = static_cast<float>(decay_ == Decay::in_gradient ? weight_decay : 0);
  const auto beta1 = static_cast<float>(settings_.beta1), rest1 = static_cast<float>(1 - settings_.beta1);
  const auto beta2 = static_cast<float>(settings_.beta2), rest2 = static_cast<float>(1 - settings_.beta2);
  const auto step_size = static_cast<float>(lr_ / (1 - std::pow(settings_.beta1, t)));
  const auto root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(settings_.beta2, t)));
  const auto eps = static_cast<float>(settings_.eps);
  const float scale = gradient_scale_;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = scale * gradient[i] + pull * value[i];
    const float m = beta1 * mean[i] + rest1 * g;
    const float v = beta2 * square[i] + rest2 * g * g;
    mean[i] = std::abs(m) < 1e-30f ? 0.0f : m;
    square[i] = v < 1e-36f ? 0.0f : v;
    value[i] = kept * value[i] - step_size * mean[i] / (std::sqrt(square[i]) * root_scale + eps);
  }
}

std::vector<OptimizerTensor> Adam::state() {
  std::vector<OptimizerTensor> tensors;
  append_state("mean", mean_, tensors);
  append_state("square", square_, tensors);
  return tensors;
}

}  // namespace kolo::models
