#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "models/compute/random.h"
#include "models/data/dataset.h"
#include "models/data/examples.h"

namespace kolo::models {

/// Images of a data set as floats (byte / 255), each with its label as the target.
class Images final : public Examples {
 public:
  /// data          must outlive this and stay as it is
  /// augment_seed  if set, each image is augmented at random in each epoch
  explicit Images(const Dataset& data, std::optional<std::uint64_t> augment_seed = std::nullopt)
      : data_(&data), augment_seed_(augment_seed) {}

  std::int64_t count() const override { return data_->count(); }
  std::int64_t targets_each() const override { return 1; }
  void gather(std::span<const std::int64_t> examples, std::int64_t epoch, BatchStorage& to) const override;

 private:
  void write(std::int64_t example, std::int64_t epoch, float* out) const;

  const Dataset* data_;
  std::optional<std::uint64_t> augment_seed_;
};

/// Extents of an image, row by row, plane by plane.
struct ImageShape {
  std::int64_t channels = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Augments an image: rotated by up to 11 degrees, scaled by up to a tenth, sheared by up to a tenth, and shifted by
/// up to two pixels, all uniformly at random. Between pixels it is interpolated, outside it is 0.
///
/// image  [channels, rows, columns], 0 … 255
/// out    likewise, 0 … 1
void augment(const ImageShape& shape, const std::uint8_t* image, Random& random, float* out);

}  // namespace kolo::models
