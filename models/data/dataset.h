#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kolo::models {

/// Labelled images in memory: one byte per input, 0 … 255 for 0 … 1 (a fourth of what floats would take).
struct Dataset {
  std::int64_t channels = 1;  ///< planes of an image: 1 for grey, 3 for colours
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int32_t classes = 0;
  std::vector<std::uint8_t> inputs;  ///< [count, channels·rows·columns]
  std::vector<std::int32_t> labels;  ///< [count], each in 0 … classes-1

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t input_size() const { return channels * rows * columns; }
};

/// What to train on, and what to measure accuracy on (may be empty).
struct DataSplit {
  Dataset train;
  Dataset held_out;
  std::string description;  ///< for people: where it is from and how it was split
};

}  // namespace kolo::models
