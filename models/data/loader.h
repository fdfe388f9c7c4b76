#pragma once

#include <cstdint>
#include <span>

#include "models/data/images.h"

namespace kolo::models {

/// Turns examples of a data set into batches of floats (byte / 255), one after the other.
class BatchLoader {
 public:
  /// data  must outlive this and stay as it is
  explicit BatchLoader(const Dataset& data) : images_(data) {}

  /// The examples of these indices, in this order. Valid until the next call.
  Batch gather(std::span<const std::int64_t> examples);

  /// Examples range.first … range.first + range.count - 1. Valid until the next call.
  Batch load(const Range& range);

 private:
  Images images_;
  BatchStorage storage_;
};

}  // namespace kolo::models
