#include "models/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "models/util/words.h"

namespace kolo::models {
namespace {

constexpr std::array<std::string_view, 3> curve_words{"constant", "linear", "cosine"};

}  // namespace

Curve curve_of(std::string_view word) {
  return static_cast<Curve>(place_of_word(curve_words, "schedule", word));
}

std::string_view to_string(Curve curve) {
  return curve_words[static_cast<std::size_t>(curve)];
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (curve == Curve::constant) return lr;
  if (step >= steps) return min_lr;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  const double left = curve == Curve::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return min_lr + (lr - min_lr) * left;
}

}  // namespace kolo::models
