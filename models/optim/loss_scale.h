#pragma once

#include <cstdint>

namespace kolo::models {

/// What the loss is multiplied by so that small gradients survive 16-bit floats with five bits of exponent: a power of
/// two, as large as the gradients bear (Micikevicius et al. 2018, arXiv:1710.03740).
class LossScale {
 public:
  /// steps_to_grow  so many good steps in a row double it
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

}  // namespace kolo::models
