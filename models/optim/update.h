#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/model/model.h"
#include "models/optim/optimizer.h"

namespace kolo::models {

/// Dynamic loss scaling for f16: a power of two, as large as possible without overflow of gradients (Micikevicius et
/// al. 2018, arXiv:1710.03740).
class LossScale {
 public:
  /// steps_to_grow  consecutive steps without overflow after which it doubles
  explicit LossScale(std::int64_t steps_to_grow = 200) : steps_to_grow_(steps_to_grow) {}

  struct State {
    float value = 8192;  // a target's gradients of logits, below 1 each, stay below f16's 65504, and what they become
    std::int64_t good_steps = 0;  ///< steps without overflow since the last change
  };

  float value() const { return now_.value; }
  const State& now() const { return now_; }
  /// What advance() makes of it.
  const State& next() const { return next_; }
  /// Restores a saved state.
  void set(const State& now, const State& next) { now_ = now, next_ = next; }
  void set(const State& now) { set(now, now); }

  /// Records a step: halves the scale if its gradients overflowed (the step must then be skipped), doubles it after
  /// steps_to_grow good ones. Stays within 1 … 2^24.
  void note(bool overflowed);
  /// The same of a step whose end nobody waited for, and whose scale was `used`: from the next advance() on. What it
  /// did with another scale than today's is no news.
  void note_late(bool overflowed, float used);
  void advance() { now_ = next_; }
  /// Whether the last step overflowed with the least scale there is: none will ever do.
  bool exhausted() const { return exhausted_; }

 private:
  std::int64_t steps_to_grow_;
  State now_, next_;
  bool exhausted_ = false;
};

/// The 2-norm of all gradients together, before clipping; may be infinite or NaN.
struct GradientNorm {
  double squares = 0;        ///< sum of the squares of parameters that are not split
  double shard_squares = 0;  ///< of those that are: over this rank's shards, and once summed over all
  bool summed = true;        ///< shard_squares is the sum over the ranks
  double scale = 1;          ///< of the gradients

  /// Once `shard_squares` is the sum over all ranks.
  double value() const;
};

/// The result of a step.
struct UpdateResult {
  GradientNorm norm;     ///< nobody has waited for its sum unless that clips or scales
  bool skipped = false;  ///< the gradients are not finite: values are as they were
  bool late = false;     ///< both are not known yet: ask late_result() for them
};

/// Applies a step's summed gradients: computes their norm, clips them, and runs the optimizer. Equal gradients give
/// equal bits on all ranks, in any order of arrival. With ZeRO-1 each rank updates its shards only; the program then
/// gathers the others.
class Update {
 public:
  /// sum = numbers, f64 where the parameters are, summed over all ranks; collective. On a GPU it is put behind all that
  /// was computed, and what is computed from then on is put behind it.
  using SumOverRanks = std::function<void(const Tensor& numbers, const Tensor& sum)>;
  /// Called with a parameter's index once its values, of this rank's shard, are updated.
  using Updated = std::function<void(std::size_t index)>;

  /// optimizer, parameters  must outlive this
  /// clip                   gradients of a larger norm are scaled down to it; of none that is finite, skipped
  /// loss_scale             of the gradients; steps that overflow are skipped. Null: 1
  /// shards                 of this rank, one for each parameter, as the optimizer's; empty: all elements
  /// updated                may be empty
  Update(Optimizer& optimizer, std::span<const Parameter> parameters, std::optional<double> clip, LossScale* loss_scale,
         std::vector<Shard> shards = {}, Updated updated = {});

  /// Begins a step.
  ///
  /// gradient_scale  factor of the gradients, beside the loss scale: 1 / targets if they are sums
  void begin(double lr, double gradient_scale);

  /// The gradient of parameter `index` has arrived. Updates the parameter, unless the norm of all must be known first.
  void arrived(std::size_t index);

  /// All gradients have arrived.
  ///
  /// sum  called once if any parameter is split and the norm clips or scales
  UpdateResult finish(const SumOverRanks& sum = {});

  /// Of a step whose result is late, once, before the next finish(): on a GPU, which the program does not wait for. A
  /// loss scale follows it from the end of the next step on.
  UpdateResult late_result();

  /// Of the last step, for each parameter: the sum of the squares of its gradient, over this rank's shard, as it
  /// arrived; the factor makes the mean's gradient of it, before clipping.
  std::vector<double> squares() const;
  double gradient_scale() const { return gradient_scale_; }

 private:
  bool waits_for_norm() const { return clip_ || loss_scale_ != nullptr; }
  bool on_gpu() const { return optimizer_->compute().device().kind != DeviceKind::cpu; }
  bool at_once() const;
  Tensor part_of_squares(std::int64_t first, std::int64_t count) const;
  Tensor own_squares() const { return part_of_squares(0, std::ssize(parameters_)); }
  Tensor norm_squares() const;
  void square_all();
  bool begin_behind_norm(UpdateResult& result);
  GradientNorm norm_of(const double* squares, double scale) const;

  Optimizer* optimizer_;
  std::span<const Parameter> parameters_;
  std::optional<double> clip_;
  LossScale* loss_scale_;
  std::vector<Shard> shards_;
  Updated updated_;
  double lr_ = 0;
  double gradient_scale_ = 1;
  // f64, a sum of squares for each parameter, so that the order of arrival does not matter: this rank's of those that
  // are split, those of the others, and once more of those that are split, over all ranks.
  Buffer squares_memory_;
  Tensor squares_;
  std::int64_t split_ = 0;           // how many are
  std::vector<std::int64_t> place_;  // of each parameter, in squares_
  std::unique_ptr<Reading> late_squares_;
  double late_scale_ = 1;
  float late_loss_scale_ = 1;
};

}  // namespace kolo::models
