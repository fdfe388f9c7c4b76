#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "models/compute/random.h"
#include "models/compute/views.h"
#include "models/model/model.h"

namespace kolo::testing {

/// Compares each parameter's gradient with central differences of the loss along random directions, computed in single
/// precision. Returns the largest difference, relative to the gradient's 2-norm, or to a thousandth of that of all
/// parameters where it is smaller still. `training` runs the forward pass that the gradient is of.
template <class Training>
double worst_difference(models::Model& model, const models::Batch& batch, float h, Training training,
                        int directions = 4) {
  model.forward_backward(batch, [](std::size_t) {});
  models::Random random(11);
  const auto norm_of = [](std::span<const float> numbers) {
    double squares = 0;
    for (const float number : numbers) squares += static_cast<double>(number) * number;
    return std::sqrt(squares);
  };
  std::vector<models::AlignedFloats> gradients;  // training() may write others
  double of_all = 0;
  for (const models::Parameter& parameter : model.parameters()) {
    auto& gradient = gradients.emplace_back();
    if (!parameter.trained) continue;
    const models::OnHost given(model.compute(), parameter.gradient);
    gradient.assign(given.floats().begin(), given.floats().end());
    of_all = std::hypot(of_all, norm_of(gradient));
  }
  double worst = 0;
  for (std::size_t index = 0; index < gradients.size(); ++index) {
    const models::AlignedFloats& gradient = gradients[index];
    const double norm = norm_of(gradient);
    for (int direction = 0; direction < directions && norm > 0; ++direction) {
      // along the gradient, disturbed: mostly uphill, so that rounding of the loss is small beside the difference
      models::AlignedFloats step(gradient.size());
      double expected = 0;
      for (std::size_t i = 0; i < step.size(); ++i) {
        step[i] =
            static_cast<float>(gradient[i] / norm + random.normal() / std::sqrt(static_cast<double>(step.size())));
        expected += static_cast<double>(step[i]) * gradient[i];
      }
      models::OnHost value(model.compute(), model.parameters()[index].value);
      const models::AlignedFloats before(value.floats().begin(), value.floats().end());
      const auto loss_at = [&](float distance) {
        for (std::size_t i = 0; i < step.size(); ++i) value.floats()[i] = before[i] + distance * step[i];
        value.put_back();
        const double loss = training(batch);
        std::ranges::copy(before, value.floats().begin());
        value.put_back();
        return loss;
      };
      const double slope = (loss_at(h) - loss_at(-h)) / (2.0 * h);
      worst = std::max(worst, std::abs(slope - expected) / std::max(norm, 1e-3 * of_all));
    }
  }
  return worst;
}

}  // namespace kolo::testing
