#pragma once

#include <span>
#include <vector>

namespace kolo::models {

/// x to the right and y down, in a box of 0 … 1.
struct Point {
  float x = 0;
  float y = 0;
};

/// A stroke of the pen: straight lines between the points, or a smooth curve through them.
struct Stroke {
  bool smooth = false;
  std::vector<Point> points;
};

/// One way to write a digit.
using Glyph = std::vector<Stroke>;

/// The ways to write digit 0 … 9; at least two.
std::span<const Glyph> glyphs_of(int digit);

/// The stroke as a polyline: a smooth one is a Catmull-Rom spline with `pieces` segments to a span.
std::vector<Point> outline(const Stroke& stroke, int pieces);

}  // namespace kolo::models
