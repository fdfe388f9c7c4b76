#pragma once

#include <kolo/reduce_fn.h>

#include "models/layers/layered_model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// Convolution 3×3, ReLU, max-pooling 2×2, a hidden layer with ReLU, a last one, softmax cross-entropy.
///
/// Parameters are "conv1.weight" [filters, channels, 3, 3], "conv1.bias", "dense1.weight" [dense, filters·places],
/// "dense1.bias", "dense2.weight", "dense2.bias"; inputs are [examples, channels, height, width]. With batch norm there
/// are those of a NormedConv2d "conv1", "bn1" instead of the convolution's. One thread at a time.
class Cnn final : public LayeredModel {
 public:
  /// reduce  sums of a batch norm over the ranks, as in NormedConv2d
  /// Errors: ModelError for sizes that make no model.
  explicit Cnn(const CnnSettings& settings, Precision precision = Precision::f32, ReduceFn reduce = {},
               Device device = {});

  const CnnSettings& settings() const { return settings_; }

 private:
  CnnSettings settings_;
};

}  // namespace kolo::models
