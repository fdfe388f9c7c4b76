#include "models/data/images.h"

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

void Images::gather(std::span<const std::int64_t> examples, std::int64_t epoch, BatchStorage& to) const {
  to.examples = static_cast<std::int64_t>(examples.size());
  to.inputs.resize(examples.size() * static_cast<std::size_t>(data_->input_size()));
  to.targets.clear();
  float* out = to.inputs.data();
  for (const std::int64_t example : examples) {
    write(example, epoch, out);
    out += data_->input_size();
    to.targets.push_back(data_->labels[static_cast<std::size_t>(example)]);
  }
}

void Images::write(std::int64_t example, std::int64_t epoch, float* out) const {
  const std::int64_t size = data_->input_size();
  const std::uint8_t* const in = data_->inputs.data() + example * size;
  if (!augment_seed_) {
    for (std::int64_t i = 0; i < size; ++i) out[i] = static_cast<float>(in[i]) / 255.0f;
    return;
  }
  constexpr std::uint64_t apart = 0x1f83d9abfb41bd6b;  // from the streams of weights and order of the same seed
  Random random(*augment_seed_ ^ apart, static_cast<std::uint64_t>(epoch * data_->count() + example));
  augment({data_->channels, data_->rows, data_->columns}, in, random, out);
}

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
