#pragma once

#include <cstdint>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"

namespace kolo::models {

/// Angles of rotary positions (Su et al. 2021, arXiv:2104.09864) from one position to the next: theta^(-2i/head_dim)
/// for pair i of head_dim / 2.
std::vector<double> rotation_steps(std::int64_t head_dim, double theta);

/// Cosines and sines of rotary positions: pair i at position p is rotated by p · steps[i].
class Rotations {
 public:
  explicit Rotations(std::vector<double> steps);

  /// [positions, head_dim / 2] each, on the host; grows to that many positions.
  void need(std::int64_t positions);
  const float* cosine() const { return cosine_.data(); }
  const float* sine() const { return sine_.data(); }

  /// The same on a device, always the same one.
  RotationTables tables(Compute& compute, std::int64_t positions);

 private:
  std::int64_t half_;
  std::vector<double> steps_;
  std::vector<float> cosine_, sine_;
  std::int64_t on_device_ = 0;  // positions
  Buffer cosine_memory_, sine_memory_;
};

}  // namespace kolo::models
