#include "models/optim/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kolo::models {
namespace {

std::vector<Shard> all_of(std::span<const Parameter> parameters) {
  std::vector<Shard> shards;
  for (const Parameter& parameter : parameters) shards.push_back({.count = parameter.value.size()});
  return shards;
}

}  // namespace

Update::Update(Optimizer& optimizer, std::span<const Parameter> parameters, std::optional<double> clip,
               LossScale* loss_scale, std::vector<Shard> shards)
    : optimizer_(&optimizer),
      parameters_(parameters),
      clip_(clip),
      loss_scale_(loss_scale),
      shards_(shards.empty() ? all_of(parameters) : std::move(shards)),
      squares_(parameters.size()) {}

void Update::begin(double lr, double gradient_scale) {
  lr_ = lr;
  gradient_scale_ = gradient_scale / (loss_scale_ == nullptr ? 1 : loss_scale_->value());
  if (!waits_for_norm()) optimizer_->begin_step(lr_, gradient_scale_);
}

void Update::arrived(std::size_t index) {
  const Shard& shard = shards_[index];
  const Tensor squares = view_scalar(squares_[index]);
  if (!waits_for_norm()) return optimizer_->update(index, shard.first, shard.count, squares);
  const std::array gradient{view(parameters_[index].gradient.subspan(shard.first, shard.count))};
  optimizer_->compute().sums_of_squares(gradient, squares);
}

double Update::norm(const SumOverRanks& sum) const {
  double total = 0, of_shards = 0;
  bool split = false;
  for (std::size_t i = 0; i < squares_.size(); ++i) {
    split |= shards_[i].split;
    (shards_[i].split ? of_shards : total) += squares_[i];
  }
  if (split) total += sum(of_shards);
  return std::sqrt(total) * gradient_scale_;
}

UpdateResult Update::finish(const SumOverRanks& sum) {
  const double before = norm(sum);
  if (!waits_for_norm()) return {.gradient_norm = before};
  const bool overflowed = loss_scale_ != nullptr && !std::isfinite(before);
  if (loss_scale_ != nullptr) loss_scale_->note(overflowed);
  if (overflowed) return {.gradient_norm = before, .skipped = true};
  // As PyTorch's clip_grad_norm_, with its 1e-6 that keeps a norm of 0 from dividing.
  const double clipped = clip_ ? std::min(1.0, *clip_ / (before + 1e-6)) : 1.0;
  optimizer_->begin_step(lr_, gradient_scale_ * clipped);
  for (std::size_t i = 0; i < parameters_.size(); ++i) optimizer_->update(i, shards_[i].first, shards_[i].count, {});
  return {.gradient_norm = before};
}

void LossScale::set(float value, std::int64_t good_steps) {
  value_ = value;
  good_steps_ = good_steps;
}

void LossScale::note(bool overflowed) {
  constexpr float least = 1, largest = 1 << 24;
  if (overflowed) return set(std::max(value_ / 2, least), 0);
  if (++good_steps_ >= steps_to_grow_) set(std::min(value_ * 2, largest), 0);
}

}  // namespace kolo::models
