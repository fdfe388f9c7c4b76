#include "models/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/compute/random.h"
#include "models/data/glyphs.h"

namespace kolo::models {
namespace {

constexpr int side = 28;
constexpr std::size_t pixels_each = 784;  // side * side
using Canvas = std::array<float, pixels_each>;

/// From the box of a glyph to pixels: slant and size, then a turn, then a shift.
struct Placement {
  float width, height;  // of the box, in pixels
  float slant;          // how far up moves right, as a share
  float cosine, sine;
  float x, y;  // of the box's middle

  explicit Placement(Random& random)
      : width(14 + random.symmetric(4)), height(19 + random.symmetric(3)), slant(random.symmetric(0.35f)) {
    const float t = random.symmetric(0.13f);  // tangent of half the angle, which is up to 15 degrees
    cosine = (1 - t * t) / (1 + t * t);
    sine = 2 * t / (1 + t * t);
    x = side / 2.0f + random.symmetric(2.5f);
    y = side / 2.0f + random.symmetric(2.5f);
  }

  Point operator()(const Point& point) const {
    const float v = (point.y - 0.5f) * height;
    const float u = (point.x - 0.5f) * width - slant * v;
    return {x + cosine * u - sine * v, y + sine * u + cosine * v};
  }
};

/// Draws a straight line of half a width: a pixel takes as much ink as the pen covers of it, judged by its distance.
void draw(Canvas& canvas, const Point& from, const Point& to, float half_width) {
  const float reach = half_width + 0.5f;
  const auto clamp = [](float value) { return std::clamp(static_cast<int>(value), 0, side); };
  const int left = clamp(std::min(from.x, to.x) - reach), right = clamp(std::max(from.x, to.x) + reach + 1);
  const int top = clamp(std::min(from.y, to.y) - reach), bottom = clamp(std::max(from.y, to.y) + reach + 1);
  const float dx = to.x - from.x, dy = to.y - from.y;
  const float length_squared = std::max(dx * dx + dy * dy, 1e-12f);
  for (int row = top; row < bottom; ++row) {
    for (int column = left; column < right; ++column) {
      const float px = static_cast<float>(column) + 0.5f - from.x, py = static_cast<float>(row) + 0.5f - from.y;
      const float along = std::clamp((px * dx + py * dy) / length_squared, 0.0f, 1.0f);
      const float ex = px - along * dx, ey = py - along * dy;
      const float ink = std::clamp(reach - std::sqrt(ex * ex + ey * ey), 0.0f, 1.0f);
      float& pixel = canvas[static_cast<std::size_t>(row) * side + static_cast<std::size_t>(column)];
      pixel = std::max(pixel, ink);
    }
  }
}

void draw(Canvas& canvas, const Stroke& stroke, const Placement& place, float half_width) {
  std::vector<Point> points = outline(stroke, 4);
  for (Point& point : points) point = place(point);
  for (std::size_t i = 1; i < points.size(); ++i) draw(canvas, points[i - 1], points[i], half_width);
}

/// A way to write the digit, its points moved a little; a point that strokes share moves with all of them.
Glyph wobbly(int digit, Random& random) {
  const auto ways = glyphs_of(digit);
  Glyph glyph = ways[random.below(ways.size())];
  const std::array<float, 4> wave{random.symmetric(0.07f), random.symmetric(0.07f), random.symmetric(0.07f),
                                  random.symmetric(0.07f)};
  for (Stroke& stroke : glyph) {
    for (Point& point : stroke.points) {
      const float x = point.x - 0.5f, y = point.y - 0.5f;
      point.x += wave[0] * (1 - 8 * y * y) + wave[1] * 4 * x * y;
      point.y += wave[2] * (1 - 8 * x * x) + wave[3] * 4 * x * y;
    }
  }
  return glyph;
}

void render(int digit, Random& random, std::uint8_t* pixels) {
  const Placement place(random);
  const float half_width = 1.2f + random.symmetric(0.6f);
  Canvas canvas{};
  for (const Stroke& stroke : wobbly(digit, random)) draw(canvas, stroke, place, half_width);
  const float ink = 215 + random.symmetric(40), noise = 50 * random.uniform();
  for (std::size_t i = 0; i < canvas.size(); ++i) {
    const float value = ink * canvas[i] + random.symmetric(noise);
    pixels[i] = static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
  }
}

Dataset render_set(std::uint64_t seed, std::int64_t first, std::int64_t count) {
  Dataset data{.rows = side, .columns = side, .classes = 10, .inputs = {}, .labels = {}};
  data.inputs.resize(static_cast<std::size_t>(count) * pixels_each);
  for (std::int64_t i = 0; i < count; ++i) {
    Random random(seed, static_cast<std::uint64_t>(first + i));
    data.labels.push_back(static_cast<std::int32_t>(random.below(10)));
    render(data.labels.back(), random, data.inputs.data() + i * side * side);
  }
  return data;
}

}  // namespace

DataSplit render_digits(const RenderedSettings& settings) {
  return {render_set(settings.seed, 0, settings.train), render_set(settings.seed, settings.train, settings.held_out),
          fmt::format("digits drawn by this program: {} to train on, {} held out", settings.train, settings.held_out)};
}

}  // namespace kolo::models
