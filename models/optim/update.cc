#include "models/optim/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
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
      split_(std::ranges::count_if(shards_, &Shard::split)) {
  const std::int64_t count = std::ssize(parameters);
  squares_ = squares_memory_.make(optimizer.compute(), DType::f64, {count + split_}, "sums of squares");
  optimizer.compute().fill(squares_, 0);  // of buffers it stays
  std::int64_t split = 0, whole = split_;
  for (const Shard& shard : shards_) place_.push_back(shard.split ? split++ : whole++);
}

void Update::begin(double lr, double gradient_scale) {
  lr_ = lr;
  gradient_scale_ = gradient_scale / (loss_scale_ == nullptr ? 1 : loss_scale_->value());
  if (!waits_for_norm()) optimizer_->begin_step(lr_, gradient_scale_);
}

void Update::arrived(std::size_t index) {
  if (at_once()) return;
  const Tensor squares = part_of_squares(place_[index], 1);
  if (waits_for_norm()) {
    const std::array gradient{part_of(parameters_[index].gradient, shards_[index])};
    optimizer_->compute().sums_of_squares(gradient, squares);
    return;
  }
  optimizer_->update(index, squares);
  if (updated_) updated_(index);
}

double GradientNorm::value() const {
  return std::sqrt(squares + shard_squares) * scale;
}

Tensor Update::part_of_squares(std::int64_t first, std::int64_t count) const {
  return part_of(squares_, first, {count});
}

/// What the norm is computed from: over all ranks, if that clips or scales.
Tensor Update::norm_squares() const {
  return waits_for_norm() ? part_of_squares(split_, std::ssize(parameters_)) : own_squares();
}

std::vector<double> Update::squares() const {
  std::vector<double> placed(shards_.size()), squares;
  optimizer_->compute().read(own_squares(), placed.data());
  for (const std::int64_t place : place_) squares.push_back(placed[static_cast<std::size_t>(place)]);
  return squares;
}

/// squares  norm_squares()
GradientNorm Update::norm_of(const double* squares, double scale) const {
  const std::int64_t whole = std::ssize(parameters_) - split_;
  const double* const split = squares + (waits_for_norm() ? whole : 0);
  const double* const others = squares + (waits_for_norm() ? 0 : split_);
  return {.squares = std::accumulate(others, others + whole, 0.0),
          .shard_squares = std::accumulate(split, split + split_, 0.0),
          .summed = split_ == 0 || waits_for_norm(),
          .scale = scale};
}

/// Whether all parameters wait for the last gradient: a GPU takes longer to begin an operation than to do it for most
/// of them. Shards do not wait, unless for the norm: their gathering begins as soon as they are updated.
bool Update::at_once() const {
  return on_gpu() && (waits_for_norm() || split_ == 0);
}

void Update::square_all() {
  std::vector<Tensor> gradients(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    gradients[static_cast<std::size_t>(place_[i])] = part_of(parameters_[i].gradient, shards_[i]);
  optimizer_->compute().sums_of_squares(gradients, own_squares());
}

UpdateResult Update::late_result() {
  const GradientNorm norm = norm_of(static_cast<const double*>(late_squares_->wait()), late_scale_);
  late_squares_.reset();
  const bool skipped = waits_for_norm() && !std::isfinite(norm.value());
  if (skipped) optimizer_->set_steps_begun(optimizer_->steps_begun() - 1);
  if (loss_scale_ != nullptr) loss_scale_->note_late(skipped, late_loss_scale_);
  return {.norm = norm, .skipped = skipped};
}

UpdateResult Update::finish(const SumOverRanks& sum) {
  if (at_once()) square_all();
  if (waits_for_norm() && split_ > 0) {
    sum(part_of_squares(0, split_), part_of_squares(std::ssize(parameters_), split_));
  }
  UpdateResult result{.late = on_gpu()};
  if (result.late) {
    late_squares_ = optimizer_->compute().read_later(norm_squares());
    late_scale_ = gradient_scale_;
    if (loss_scale_ != nullptr) {
      late_loss_scale_ = loss_scale_->value();
      loss_scale_->advance();
    }
  } else {
    std::vector<double> squares(parameters_.size());
    optimizer_->compute().read(norm_squares(), squares.data());
    result.norm = norm_of(squares.data(), gradient_scale_);
  }
  if (waits_for_norm() && !begin_behind_norm(result)) return result;
  if (!waits_for_norm() && !at_once()) return result;
  if (at_once()) optimizer_->update_all();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].trained) continue;
    if (!at_once()) optimizer_->update(i);
    if (updated_) updated_(i);
  }
  return result;
}

/// Begins the optimizer's step with the factor that the norm has; false if there is none: the step is skipped.
bool Update::begin_behind_norm(UpdateResult& result) {
  if (result.late) {
    optimizer_->begin_clipped_step(lr_, gradient_scale_, clip_.value_or(HUGE_VAL), norm_squares());
    return true;
  }
  const double norm = result.norm.value();
  result.skipped = !std::isfinite(norm);
  if (loss_scale_ != nullptr) loss_scale_->note(result.skipped);
  if (!result.skipped) optimizer_->begin_step(lr_, gradient_scale_ * (clip_ ? clip_factor(norm, *clip_) : 1.0));
  return !result.skipped;
}

void LossScale::note(bool overflowed) {
  const float used = value();
  advance();  // what a GPU has left behind, where a run began
  note_late(overflowed, used);
  advance();
}

void LossScale::note_late(bool overflowed, float used) {
  constexpr float least = 1, largest = 1 << 24;
  exhausted_ = overflowed && used == least;
  next_ = now_;
  if (used != now_.value) return;
  if (overflowed)
    next_ = {.value = std::max(used / 2, least)};
  else if (++next_.good_steps >= steps_to_grow_)
    next_ = {.value = std::min(used * 2, largest)};
}

}  // namespace kolo::models
