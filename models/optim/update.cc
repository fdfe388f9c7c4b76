#include "models/optim/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "models/compute/views.h"

namespace kolo::models {
Update::Update(Optimizer& optimizer, std::span<const Parameter> parameters, std::optional<double> clip,
               LossScale* loss_scale, std::vector<Shard> shards, Updated updated)
    : optimizer_(&optimizer),
      parameters_(parameters),
      clip_(clip),
      loss_scale_(loss_scale),
      shards_(shards.empty() ? whole_shards(parameters) : std::move(shards)),
      updated_(std::move(updated)),
      squares_(squares_memory_.make(optimizer.compute(), DType::f64, {std::ssize(parameters)}, "sums of squares")) {
  optimizer.compute().fill(squares_, 0);  // of buffers it stays
}

void Update::begin(double lr, double gradient_scale) {
  lr_ = lr;
  gradient_scale_ = gradient_scale / (loss_scale_ == nullptr ? 1 : loss_scale_->value());
  if (!waits_for_norm()) optimizer_->begin_step(lr_, gradient_scale_);
}

void Update::arrived(std::size_t index) {
  const Tensor squares = part_of(squares_, static_cast<std::int64_t>(index), {1});
  if (waits_for_norm()) {
    const std::array gradient{part_of(parameters_[index].gradient, shards_[index])};
    if (!at_once()) optimizer_->compute().sums_of_squares(gradient, squares);
    return;
  }
  optimizer_->update(index, squares);
  if (updated_) updated_(index);
}

double GradientNorm::value() const {
  return std::sqrt(squares + shard_squares) * scale;
}

std::vector<double> Update::squares() const {
  std::vector<double> squares(shards_.size());
  optimizer_->compute().read(squares_, squares.data());
  return squares;
}

GradientNorm Update::norm_of(std::span<const double> squares, double scale) const {
  GradientNorm norm{.scale = scale};
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (shards_[i].split) norm.summed = false;
    (shards_[i].split ? norm.shard_squares : norm.squares) += squares[i];
  }
  return norm;
}

/// A GPU takes longer to begin an operation than to do it for most parameters.
bool Update::at_once() const {
  return optimizer_->compute().device().kind != DeviceKind::cpu;
}

void Update::square_all() {
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    gradients.push_back(part_of(parameters_[i].gradient, shards_[i]));
  optimizer_->compute().sums_of_squares(gradients, squares_);
}

bool Update::is_late() const {
  if (!at_once() || loss_scale_ != nullptr) return false;
  return !clip_ || std::ranges::none_of(shards_, &Shard::split);
}

UpdateResult Update::late_result() {
  const std::span squares(static_cast<const double*>(late_squares_->wait()), shards_.size());
  const GradientNorm norm = norm_of(squares, late_scale_);
  late_squares_.reset();
  return {.norm = norm, .skipped = clip_.has_value() && !std::isfinite(norm.value())};
}

UpdateResult Update::finish(const SumOverRanks& sum) {
  UpdateResult result{.late = is_late()};
  if (at_once() && waits_for_norm()) square_all();
  if (result.late) {
    late_squares_ = optimizer_->compute().read_later(squares_);
    late_scale_ = gradient_scale_;
    if (!waits_for_norm()) return result;
    optimizer_->begin_clipped_step(lr_, gradient_scale_, *clip_, squares_);
  } else {
    GradientNorm norm = norm_of(squares(), gradient_scale_);
    if (!waits_for_norm()) return {.norm = norm};
    if (!norm.summed) norm.shard_squares = sum(norm.shard_squares);
    norm.summed = true;
    const double before = norm.value();
    const bool skipped = !std::isfinite(before);
    if (loss_scale_ != nullptr) loss_scale_->note(skipped);
    if (skipped) return {.norm = norm, .skipped = true};
    const double clipped = clip_ ? clip_factor(before, *clip_) : 1.0;
    optimizer_->begin_step(lr_, gradient_scale_ * clipped);
    result = {.norm = norm};
  }
  if (at_once()) optimizer_->update_all();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].trained) continue;
    if (!at_once()) optimizer_->update(i);
    if (updated_) updated_(i);
  }
  return result;
}

void LossScale::set(float value, std::int64_t good_steps) {
  value_ = value;
  good_steps_ = good_steps;
}

void LossScale::note(bool overflowed) {
  constexpr float least = 1, largest = 1 << 24;
  exhausted_ = overflowed && value_ == least;
  if (overflowed) return set(std::max(value_ / 2, least), 0);
  if (++good_steps_ >= steps_to_grow_) set(std::min(value_ * 2, largest), 0);
}

}  // namespace kolo::models
