#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "models/model/model.h"
#include "models/optim/optimizer.h"

namespace kolo::models {

/// What the loss is multiplied by so that small gradients survive 16-bit floats with five bits of exponent: a power of
/// two, as large as the gradients bear (Micikevicius et al. 2018, arXiv:1710.03740).
class LossScale {
 public:
  /// steps_to_grow  that many good steps in a row double it
  explicit LossScale(std::int64_t steps_to_grow = 200) : steps_to_grow_(steps_to_grow) {}

  float value() const { return value_; }
  /// Good steps since it last changed.
  std::int64_t good_steps() const { return good_steps_; }
  /// Goes on where another left off.
  void set(float value, std::int64_t good_steps);

  /// Takes note of a step: halves if its gradients overflowed, which is when it must not be applied; doubles after
  /// enough good ones. Stays within 1 … 2^24.
  void note(bool overflowed);

 private:
  std::int64_t steps_to_grow_;
  float value_ = 65536;
  std::int64_t good_steps_ = 0;
};

/// What became of a step.
struct UpdateResult {
  double gradient_norm = 0;  ///< 2-norm of all gradients together, before clipping; may be infinite or none at all
  bool skipped = false;      ///< the gradients overflowed: values are as they were
};

/// Turns a step's summed gradients into better values: measures their norm, clips them, and lets the optimizer use
/// them. Ranks that hold the same gradients come to the same bits, in whatever order the gradients arrive. Where ranks
/// share the work out, each uses its shards only; the values of the others' must then be fetched from them.
class Update {
 public:
  /// The sum of a number over all ranks; collective.
  using SumOverRanks = std::function<double(double)>;

  /// optimizer, parameters  must outlive this
  /// clip                   gradients of a larger norm are scaled down to it
  /// loss_scale             what the loss was multiplied by; gradients that overflow are skipped. Null: 1, nothing is
  /// skipped
  /// shards                 as the parameters: what this rank updates; empty: all of them
  Update(Optimizer& optimizer, std::span<const Parameter> parameters, std::optional<double> clip, LossScale* loss_scale,
         std::vector<Shard> shards = {});

  /// Begins a step.
  ///
  /// gradient_scale  what gradients are to be multiplied by, but for the loss scale: 1 / targets, if they are sums
  void begin(double lr, double gradient_scale);

  /// The gradient of parameter `index` is there. Uses it at once, unless the norm of all must be known first.
  void arrived(std::size_t index);

  /// All gradients are there.
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
