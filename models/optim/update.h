#pragma once

#include <cstdint>
#include <functional>
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

  float value() const { return value_; }
  /// Steps without overflow since the last change.
  std::int64_t good_steps() const { return good_steps_; }
  /// Restores a saved state.
  void set(float value, std::int64_t good_steps);

  /// Records a step: halves the scale if its gradients overflowed (the step must then be skipped), doubles it after
  /// steps_to_grow good ones. Stays within 1 … 2^24.
  void note(bool overflowed);

 private:
  std::int64_t steps_to_grow_;
  float value_ = 65536;
  std::int64_t good_steps_ = 0;
};

/// The result of a step.
struct UpdateResult {
  double gradient_norm = 0;  ///< 2-norm of all gradients together, before clipping; may be infinite or NaN
  bool skipped = false;      ///< the gradients overflowed: values are as they were
};

/// Applies a step's summed gradients: computes their norm, clips them, and runs the optimizer. Equal gradients give
/// equal bits on all ranks, in any order of arrival. With ZeRO-1 each rank updates its shards only; the program then
/// gathers the others.
class Update {
 public:
  /// The sum of a number over all ranks; collective.
  using SumOverRanks = std::function<double(double)>;

  /// optimizer, parameters  must outlive this
  /// clip                   gradients of a larger norm are scaled down to it
  /// loss_scale             of the gradients; steps that overflow are skipped. Null: 1, no step is skipped
  /// shards                 of this rank, one for each parameter; empty: all elements
  Update(Optimizer& optimizer, std::span<const Parameter> parameters, std::optional<double> clip, LossScale* loss_scale,
         std::vector<Shard> shards = {});

  /// Begins a step.
  ///
  /// gradient_scale  factor of the gradients, beside the loss scale: 1 / targets if they are sums
  void begin(double lr, double gradient_scale);

  /// The gradient of parameter `index` has arrived. Updates the parameter, unless the norm of all must be known first.
  void arrived(std::size_t index);

  /// All gradients have arrived.
  ///
  /// sum  called once if any parameter is split
  UpdateResult finish(const SumOverRanks& sum = {});

 private:
  bool waits_for_norm() const { return clip_ || loss_scale_ != nullptr; }
  double norm(const SumOverRanks& sum) const;

  Optimizer* optimizer_;
  std::span<const Parameter> parameters_;
  std::optional<double> clip_;
  LossScale* loss_scale_;
  std::vector<Shard> shards_;
  double lr_ = 0;
  double gradient_scale_ = 1;
  std::vector<double> squares_;  // sums, one for each parameter, so that the order of arrival does not matter
};

}  // namespace kolo::models
