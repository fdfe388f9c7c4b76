#pragma once

#include <cstdint>
#include <string_view>

namespace kolo::models {

enum class Curve : unsigned char { constant, linear, cosine };

/// "constant", "linear" or "cosine". Errors: ModelError for any other word.
Curve curve_of(std::string_view word);
std::string_view to_string(Curve curve);

/// How the learning rate goes over a run.
struct Schedule {
  Curve curve = Curve::constant;
  double lr = 0;            ///< the highest
  double min_lr = 0;        ///< where linear and cosine end
  std::int64_t warmup = 0;  ///< steps at the beginning in which it rises in a straight line
  std::int64_t steps = 0;   ///< of the run: where linear and cosine end

  /// Learning rate of step `step`, from 0: lr·(step+1)/warmup in the first `warmup` steps, then from lr (at step
  /// `warmup`) to min_lr (at step `steps` and behind it) along the curve.
  double at(std::int64_t step) const;
};

}  // namespace kolo::models
