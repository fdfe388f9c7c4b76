#include "models/data/augment.h"

#include <cmath>

namespace kolo::models {
namespace {

/// From a pixel of the new image to a place in the old one, both counted from the middle.
struct Motion {
  float xx, xy, yx, yy;
  float x, y;  // shift

  explicit Motion(Random& random) {
    const float t =
        random.symmetric(0.096f);  // tangent of half the angle; no trigonometry, so the same bits everywhere
    const float cosine = (1 - t * t) / (1 + t * t), sine = 2 * t / (1 + t * t);
    const float wide = 1 + random.symmetric(0.1f), high = 1 + random.symmetric(0.1f), shear = random.symmetric(0.1f);
    xx = cosine * wide;
    xy = shear - sine * high;
    yx = sine * wide;
    yy = cosine * high;
    x = random.symmetric(2);
    y = random.symmetric(2);
  }
};

float pixel(const ImageShape& shape, const std::uint8_t* plane, std::int64_t row, std::int64_t column) {
  const bool inside = row >= 0 && row < shape.rows && column >= 0 && column < shape.columns;
  return inside ? static_cast<float>(plane[row * shape.columns + column]) : 0.0f;
}

float between_pixels(const ImageShape& shape, const std::uint8_t* plane, float y, float x) {
  const float top = std::floor(y), left = std::floor(x), down = y - top, right = x - left;
  const auto row = static_cast<std::int64_t>(top), column = static_cast<std::int64_t>(left);
  const float upper = (1 - right) * pixel(shape, plane, row, column) + right * pixel(shape, plane, row, column + 1);
  const float lower =
      (1 - right) * pixel(shape, plane, row + 1, column) + right * pixel(shape, plane, row + 1, column + 1);
  return (1 - down) * upper + down * lower;
}

}  // namespace

void augment(const ImageShape& shape, const std::uint8_t* image, Random& random, float* out) {
  const Motion motion(random);
  const float middle_row = static_cast<float>(shape.rows - 1) / 2,
              middle_column = static_cast<float>(shape.columns - 1) / 2;
  for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
    const std::uint8_t* const plane = image + channel * shape.rows * shape.columns;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        const float v = static_cast<float>(row) - middle_row, u = static_cast<float>(column) - middle_column;
        const float x = middle_column + motion.xx * u + motion.xy * v + motion.x;
        const float y = middle_row + motion.yx * u + motion.yy * v + motion.y;
        *out++ = between_pixels(shape, plane, y, x) / 255.0f;
      }
    }
  }
}

}  // namespace kolo::models
