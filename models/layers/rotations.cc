#include "models/layers/rotations.h"

#include <cmath>
#include <iterator>
#include <utility>

#include <kolo/tensor.h>

namespace kolo::models {

std::vector<double> rotation_steps(std::int64_t head_dim, double theta) {
  std::vector<double> steps;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    steps.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  return steps;
}

Rotations::Rotations(std::vector<double> steps) : half_(std::ssize(steps)), steps_(std::move(steps)) {}

void Rotations::need(std::int64_t positions) {
  for (auto position = static_cast<std::int64_t>(cosine_.size()) / half_; position < positions; ++position) {
    for (const double step : steps_) {
      cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(position) * step)));
      sine_.push_back(static_cast<float>(std::sin(static_cast<double>(position) * step)));
    }
  }
}

RotationTables Rotations::tables(Compute& compute, std::int64_t positions) {
  need(positions);
  const Shape shape{static_cast<std::int64_t>(cosine_.size()) / half_, half_};
  const RotationTables tables{.cosine = cosine_memory_.make(compute, DType::f32, shape, "cosines of positions"),
                              .sine = sine_memory_.make(compute, DType::f32, shape, "sines of positions")};
  if (on_device_ == shape[0]) return tables;
  compute.copy(view(cosine_.data(), shape), tables.cosine);
  compute.copy(view(sine_.data(), shape), tables.sine);
  on_device_ = shape[0];
  return tables;
}

}  // namespace kolo::models
