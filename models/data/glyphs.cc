#include "models/data/glyphs.h"

#include <array>
#include <cstddef>

namespace kolo::models {
namespace {

using Glyphs = std::vector<Glyph>;

Stroke line(std::vector<Point> points) {
  return {false, std::move(points)};
}
Stroke curve(std::vector<Point> points) {
  return {true, std::move(points)};
}

std::array<Glyphs, 10> all_glyphs() {
  return {{
      {{curve({{.5f, .03f},
               {.8f, .2f},
               {.88f, .5f},
               {.8f, .8f},
               {.5f, .97f},
               {.2f, .8f},
               {.12f, .5f},
               {.2f, .2f},
               {.5f, .03f}})},
       {curve({{.55f, .03f}, {.75f, .25f}, {.72f, .65f}, {.45f, .97f}, {.25f, .75f}, {.28f, .35f}, {.55f, .03f}})}},
      {{line({{.5f, .03f}, {.5f, .97f}})},
       {line({{.28f, .27f}, {.55f, .03f}, {.55f, .97f}})},
       {line({{.3f, .25f}, {.52f, .03f}, {.52f, .95f}}), line({{.28f, .95f}, {.76f, .95f}})}},
      {{curve({{.18f, .25f}, {.35f, .06f}, {.62f, .05f}, {.78f, .22f}, {.7f, .45f}, {.42f, .72f}, {.17f, .94f}}),
        line({{.17f, .94f}, {.85f, .94f}})},
       {curve({{.2f, .2f},
               {.5f, .04f},
               {.75f, .24f},
               {.62f, .56f},
               {.3f, .88f},
               {.15f, .86f},
               {.25f, .74f},
               {.5f, .86f},
               {.7f, .95f},
               {.88f, .84f}})}},
      {{curve({{.18f, .14f}, {.48f, .03f}, {.74f, .2f}, {.64f, .4f}, {.4f, .47f}}),
        curve({{.4f, .47f}, {.7f, .54f}, {.82f, .74f}, {.62f, .94f}, {.35f, .96f}, {.15f, .85f}})},
       {line({{.2f, .06f}, {.78f, .06f}, {.43f, .42f}}),
        curve({{.43f, .42f}, {.7f, .47f}, {.82f, .7f}, {.64f, .93f}, {.35f, .96f}, {.15f, .86f}})}},
      {{line({{.3f, .05f}, {.18f, .56f}, {.86f, .56f}}), line({{.66f, .3f}, {.64f, .97f}})},
       {line({{.66f, .97f}, {.66f, .05f}, {.12f, .66f}, {.9f, .66f}})},
       {curve({{.22f, .06f}, {.2f, .36f}, {.35f, .52f}, {.6f, .5f}, {.76f, .38f}}), line({{.8f, .05f}, {.7f, .97f}})}},
      {{line({{.8f, .05f}, {.28f, .06f}, {.22f, .46f}}),
        curve({{.22f, .46f}, {.5f, .36f}, {.78f, .52f}, {.78f, .82f}, {.5f, .97f}, {.15f, .86f}})},
       {curve({{.82f, .08f},
               {.5f, .06f},
               {.3f, .18f},
               {.34f, .4f},
               {.64f, .52f},
               {.72f, .76f},
               {.5f, .95f},
               {.16f, .88f}})}},
      {{curve({{.68f, .05f},
               {.4f, .24f},
               {.2f, .6f},
               {.3f, .9f},
               {.6f, .94f},
               {.8f, .73f},
               {.62f, .52f},
               {.36f, .57f},
               {.22f, .72f}})},
       {line({{.45f, .03f}, {.25f, .55f}}),
        curve({{.25f, .55f}, {.24f, .85f}, {.5f, .97f}, {.74f, .85f}, {.7f, .6f}, {.46f, .53f}, {.25f, .68f}})}},
      {{line({{.14f, .07f}, {.85f, .07f}, {.4f, .97f}})},
       {line({{.14f, .07f}, {.85f, .07f}, {.42f, .97f}}), line({{.35f, .5f}, {.78f, .5f}})},
       {curve({{.14f, .17f}, {.3f, .07f}, {.6f, .12f}, {.82f, .07f}}),
        curve({{.82f, .07f}, {.6f, .4f}, {.5f, .7f}, {.48f, .97f}})}},
      {{curve({{.5f, .03f}, {.74f, .13f}, {.72f, .35f}, {.5f, .47f}, {.28f, .35f}, {.26f, .13f}, {.5f, .03f}}),
        curve({{.5f, .47f}, {.8f, .6f}, {.78f, .87f}, {.5f, .97f}, {.22f, .87f}, {.2f, .6f}, {.5f, .47f}})},
       {curve({{.74f, .14f},
               {.46f, .03f},
               {.26f, .2f},
               {.5f, .44f},
               {.76f, .7f},
               {.6f, .95f},
               {.34f, .94f},
               {.26f, .72f},
               {.52f, .46f},
               {.76f, .16f}})}},
      {{curve({{.76f, .3f},
               {.6f, .48f},
               {.36f, .48f},
               {.24f, .3f},
               {.36f, .07f},
               {.62f, .04f},
               {.76f, .2f},
               {.76f, .3f}}),
        line({{.76f, .2f}, {.7f, .97f}})},
       {curve({{.75f, .25f},
               {.58f, .46f},
               {.32f, .42f},
               {.26f, .2f},
               {.5f, .03f},
               {.74f, .16f},
               {.76f, .45f},
               {.62f, .8f},
               {.3f, .96f}})}},
  }};
}

/// The point at share t (0 … 1) of the span from b to c, where a comes before and d behind.
Point catmull_rom(const Point& a, const Point& b, const Point& c, const Point& d, float t) {
  const auto blend = [t](float p, float q, float r, float s) {
    return 0.5f * (2 * q + t * ((r - p) + t * ((2 * p - 5 * q + 4 * r - s) + t * (3 * q - p - 3 * r + s))));
  };
  return {blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)};
}

}  // namespace

std::span<const Glyph> glyphs_of(int digit) {
  static const std::array<Glyphs, 10> glyphs = all_glyphs();
  return glyphs[static_cast<std::size_t>(digit)];
}

std::vector<Point> outline(const Stroke& stroke, int pieces) {
  const std::vector<Point>& points = stroke.points;
  if (!stroke.smooth) return points;
  const bool closed = points.front().x == points.back().x && points.front().y == points.back().y;
  const std::size_t last = points.size() - 1;
  std::vector<Point> out{points.front()};
  for (std::size_t i = 0; i < last; ++i) {
    const Point& before = i > 0 ? points[i - 1] : closed ? points[last - 1] : points[0];
    const Point& behind = i + 1 < last ? points[i + 2] : closed ? points[1] : points[last];
    for (int piece = 1; piece <= pieces; ++piece) {
      out.push_back(catmull_rom(before, points[i], points[i + 1], behind,
                                static_cast<float>(piece) / static_cast<float>(pieces)));
    }
  }
  return out;
}

}  // namespace kolo::models
