#include "models/optim/loss_scale.h"

#include <algorithm>

namespace kolo::models {

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
