#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kolo::cli {

/// A picture under construction, as SVG. Coordinates are points from the upper left corner; `attributes` are further
/// ones of the element, such as "stroke-width=\"2\"".
class Svg {
 public:
  using Points = std::vector<std::pair<double, double>>;

  Svg(double width, double height, std::string_view attributes);

  void line(double x1, double y1, double x2, double y2, std::string_view attributes);
  void curve(const Points& points, std::string_view colour, std::string_view attributes);
  void dot(double x, double y, double radius, std::string_view colour);
  /// anchor  which point of the text lies at x: "start", "middle" or "end"
  void text(double x, double y, std::string_view anchor, std::string_view text, std::string_view attributes);

  /// The whole picture.
  std::string done() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

}  // namespace kolo::cli
