#include "models/optim/optimizer.h"

#include <fmt/format.h>

#include <array>
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
  mean_.emplace(*this);
  square_.emplace(*this);
}

void Adam::begin_step(double lr, double gradient_scale) {
  count_step(gradient_scale);
  lr_ = lr;
}

UpdatedTensor Adam::updated(std::size_t index) const {
  UpdatedTensor tensor = shard_of(index);
  tensor.first = mean_->of(index);
  tensor.second = square_->of(index);
  tensor.decay = parameters()[index].decays ? settings_.weight_decay : 0;
  return tensor;
}

AdamStep Adam::step_of() {
  return {.lr = lr_,
          .beta1 = settings_.beta1,
          .beta2 = settings_.beta2,
          .eps = settings_.eps,
          .step = steps_begun(),
          .decoupled = decay_ == Decay::decoupled,
          .gradient_scale = gradient_scale()};
}

void Adam::update(std::size_t index, const Tensor& squares) {
  compute().adam(step_of(), std::array{updated(index)}, squares);
}

void Adam::update_all() {
  compute().adam(step_of(), all_updated([this](std::size_t index) { return updated(index); }), {});
}

std::vector<OptimizerTensor> Adam::state() {
  std::vector<OptimizerTensor> tensors;
  append_state("mean", *mean_, tensors);
  append_state("square", *square_, tensors);
  return tensors;
}

}  // namespace kolo::models
