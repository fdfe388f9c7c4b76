#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/aligned.h"
#include "models/data/dataset.h"
#include "models/data/sampler.h"
#include "models/model.h"

namespace kolo::models {

/// Turns examples of a data set into batches of floats (byte / 255).
class BatchLoader {
 public:
  /// data  must outlive this and stay as it is
  explicit BatchLoader(const Dataset& data) : data_(&data) {}

  /// The examples of these indices, in this order. Valid until the next call.
  Batch gather(std::span<const std::int64_t> examples);

  /// Examples range.first … range.first + range.count - 1. Valid until the next call.
  Batch load(const Range& range);

 private:
  void begin(std::int64_t examples);
  void append(std::int64_t example);

  const Dataset* data_;
  AlignedFloats inputs_;
  std::vector<std::int32_t> targets_;
  std::int64_t examples_ = 0;
};

/// Sums of Model::evaluate over a run of a data set's examples, in batches of 256.
BatchResult evaluate(Model& model, const Dataset& data, const Range& range);

}  // namespace kolo::models
