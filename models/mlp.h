#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/layers/layered_model.h"

namespace kolo::models {

/// Fully connected layers with max(0, ·) between them and softmax cross-entropy behind the last.
///
/// Parameters are "layers.0.weight" [out, in], "layers.0.bias" [out], "layers.1.weight", … One thread at a time.
class Mlp final : public LayeredModel {
 public:
  /// sizes  units of the input, of each hidden layer and of the output: at least two numbers, all positive (else
  /// ModelError)
  explicit Mlp(std::vector<std::int64_t> sizes, Precision precision = Precision::f32, Device device = {});

  std::span<const std::int64_t> sizes() const { return sizes_; }

 private:
  std::vector<std::int64_t> sizes_;
};

}  // namespace kolo::models
