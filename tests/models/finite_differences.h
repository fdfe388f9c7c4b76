#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "models/compute/random.h"
#include "tests/models/models_testing.h"

namespace kolo::testing {

/// Compares each parameter's gradient with central differences of the loss along random directions, computed in single
/// precision. Returns the largest difference, relative to the gradient's 2-norm, or to a thousandth of that of all
/// parameters where it is smaller still. `training` runs the forward pass that the gradient is of.
template <class B, class Training>
double worst_difference(B& bound, const models::Batch& batch, float h, Training training) {
  bound.model.forward_backward(batch, [](std::size_t) {});
  models::Random random(11);
  const auto norm_of = [](const models::AlignedFloats& numbers) {
    double squares = 0;
    for (const float number : numbers) squares += static_cast<double>(number) * number;
    return std::sqrt(squares);
  };
  const double least = 1e-3 * norm_of(bound.gradients);
  double worst = 0;
  for (const models::Parameter& parameter : bound.model.parameters()) {
    const std::span<float> value = floats_of(parameter.value), given = floats_of(parameter.gradient);
    const models::AlignedFloats gradient(given.begin(), given.end());
    const double norm = norm_of(gradient);
    for (int direction = 0; direction < 4 && norm > 0; ++direction) {
      // along the gradient, disturbed: mostly uphill, so that rounding of the loss is small beside the difference
      models::AlignedFloats step(gradient.size());
      double expected = 0;
      for (std::size_t i = 0; i < step.size(); ++i) {
        step[i] =
            static_cast<float>(gradient[i] / norm + random.normal() / std::sqrt(static_cast<double>(step.size())));
        expected += static_cast<double>(step[i]) * gradient[i];
      }
      const models::AlignedFloats before(value.begin(), value.end());
      const auto loss_at = [&](float distance) {
        for (std::size_t i = 0; i < step.size(); ++i) value[i] = before[i] + distance * step[i];
        const double loss = training(batch);
        std::ranges::copy(before, value.begin());
        return loss;
      };
      const double slope = (loss_at(h) - loss_at(-h)) / (2.0 * h);
      worst = std::max(worst, std::abs(slope - expected) / std::max(norm, least));
    }
  }
  return worst;
}

}  // namespace kolo::testing
