#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "models/util/error.h"

namespace kolo::models {

enum class Curve : unsigned char { constant, linear, cosine };

inline constexpr WordTable<Curve, 3> curves{"schedule", {"constant", "linear", "cosine"}};
constexpr std::string_view to_string(Curve curve) {
  return curves[curve];
}

/// The learning rate over the steps of a run.
struct Schedule {
  Curve curve = Curve::constant;
  double lr = 0;            ///< the peak
  double min_lr = 0;        ///< the final rate of linear and cosine
  std::int64_t warmup = 0;  ///< steps of linear warm-up
  std::int64_t steps = 0;   ///< of the run: linear and cosine end at the last one

  /// The learning rate of step `step`, from 0: lr·(step+1)/warmup in the first `warmup` steps, then along the curve
  /// from lr at step `warmup` to min_lr at step `steps` - 1, the last, and min_lr afterwards.
  double at(std::int64_t step) const {
    if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (curve == Curve::constant) return lr;
    const std::int64_t last = steps - 1;
    if (step >= last) return min_lr;
    const double done = static_cast<double>(step - warmup) / static_cast<double>(last - warmup);
    const double left = curve == Curve::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
    return min_lr + (lr - min_lr) * left;
  }
};

}  // namespace kolo::models
