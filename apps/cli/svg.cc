#include "apps/cli/svg.h"

#include <fmt/format.h>

namespace kolo::cli {

Svg::Svg(double width, double height, std::string_view attributes)
    : text_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
                        "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"sans-serif\"{2}{3}>\n"
                        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                        width, height, attributes.empty() ? "" : " ", attributes)) {}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  text_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, attributes);
}

void Svg::curve(const Points& points, std::string_view colour, std::string_view attributes) {
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{:.1f},{:.1f} ", x, y);
  text_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" {}/>\n", list, colour, attributes);
}

void Svg::dot(double x, double y, double radius, std::string_view colour) {
  text_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"/>\n", x, y, radius, colour);
}

void Svg::text(double x, double y, std::string_view anchor, std::string_view text, std::string_view attributes) {
  std::string escaped;
  for (const char c : text) escaped += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, attributes,
                       escaped);
}

}  // namespace kolo::cli
