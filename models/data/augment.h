#pragma once

#include <cstdint>

#include "models/compute/random.h"

namespace kolo::models {

/// Extents of an image, row by row, plane by plane.
struct ImageShape {
  std::int64_t channels = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Draws an image anew: turned by up to 11 degrees, scaled by up to a tenth, sheared by up to a tenth, and shifted by
/// up to two pixels, all uniformly at random. Between pixels it is interpolated, outside it is 0.
///
/// image  [channels, rows, columns], 0 … 255
/// out    likewise, 0 … 1
void augment(const ImageShape& shape, const std::uint8_t* image, Random& random, float* out);

}  // namespace kolo::models
