#include "bench/kolo_bench/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/cli/svg.h"

namespace kolo::bench {
namespace {

struct Point {
  double bytes, value;
};
struct Curve {
  std::string name;
  std::string_view colour;
  bool dashed = false;  // in place
  std::vector<Point> points;
};

constexpr double panel_width = 460, panel_height = 320, left = 70, top = 60, gap = 100, bottom = 110;
constexpr std::array<std::string_view, 4> colours{"#0b6e99", "#d9480f", "#5f3dc4", "#2b8a3e"};

/// A logarithmic axis on `length` points.
struct Axis {
  double least = 1, most = 10, length = 1;
  double at(double value) const { return std::log(value / least) / std::log(most / least) * length; }
};

/// From a power of `base`, 2 or 10, to another.
Axis axis_for(const std::vector<Curve>& curves, double Point::*value, double base, double length) {
  double least = INFINITY, most = 0;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      least = std::min(least, point.*value);
      most = std::max(most, point.*value);
    }
  }
  if (most == 0) return {1, base, length};
  const auto power = [&](double exponent) { return std::pow(base, exponent); };
  const auto exponent = [&](double of) { return base == 2 ? std::log2(of) : std::log10(of); };  // exact of powers
  least = power(std::floor(exponent(least)));
  most = power(std::ceil(exponent(most)));
  return {least, most > least ? most : least * base, length};
}

void label(cli::Svg& svg, double x, double y, std::string_view anchor, const std::string& text, int size = 12) {
  svg.text(x, y, anchor, text, fmt::format("font-size=\"{}\"", size));
}

std::string bytes_text(double bytes) {
  constexpr std::array<std::string_view, 5> units{"", "K", "M", "G", "T"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{:g}{}", bytes, units[unit]);
}

void draw_grid(cli::Svg& svg, const Axis& x, const Axis& y, double x0, double y0) {
  constexpr std::string_view grey = "stroke=\"#ccc\"";
  const double doublings = std::log2(x.most / x.least), step = std::pow(2, std::ceil(doublings / 8));
  for (double value = x.least; value <= x.most * 1.001; value *= step) {
    const double at = x0 + x.at(value);
    svg.line(at, y0, at, y0 - y.length, grey);
    label(svg, at, y0 + 18, "middle", bytes_text(value));
  }
  for (double value = y.least; value <= y.most * 1.001; value *= 10) {
    const double at = y0 - y.at(value);
    svg.line(x0, at, x0 + x.length, at, grey);
    label(svg, x0 - 8, at + 4, "end", fmt::format("{:g}", value));
  }
}

std::string_view stroke_of(const Curve& curve) {
  return curve.dashed ? "stroke-width=\"2\" stroke-dasharray=\"6 4\"" : "stroke-width=\"2\"";
}

void draw_panel(cli::Svg& svg, const std::vector<Curve>& curves, const std::string& title, double x0) {
  const double y0 = top + panel_height;
  const Axis x = axis_for(curves, &Point::bytes, 2, panel_width), y = axis_for(curves, &Point::value, 10, panel_height);
  label(svg, x0 + panel_width / 2, top - 14, "middle", title, 14);
  draw_grid(svg, x, y, x0, y0);
  for (const Curve& curve : curves) {
    cli::Svg::Points points;
    for (const Point& point : curve.points) points.emplace_back(x0 + x.at(point.bytes), y0 - y.at(point.value));
    svg.curve(points, curve.colour, stroke_of(curve));
    for (const auto& [at_x, at_y] : points) svg.dot(at_x, at_y, 2.5, curve.colour);
  }
  label(svg, x0 + panel_width / 2, y0 + 38, "middle", "bytes");
}

void draw_legend(cli::Svg& svg, const std::vector<Curve>& curves, double width) {
  double x = left, y = top + panel_height + 70;
  for (const Curve& curve : curves) {
    const double entry = 60 + 7.5 * static_cast<double>(curve.name.size());
    if (x > left && x + entry > width) x = left, y += 22;
    svg.line(x, y, x + 30, y, fmt::format("stroke=\"{}\" {}", curve.colour, stroke_of(curve)));
    label(svg, x + 36, y + 4, "start", curve.name);
    x += entry;
  }
}

bool belongs(const Result& result, const Result& first) {
  return result.dtype == first.dtype && result.redop == first.redop && result.root == first.root;
}

/// The curves of one placement: kolo's, then the peers'. `value(result, time)` may be 0 for "none".
template <class Value>
void add_curves(std::vector<Curve>& curves, const Report& report, bool in_place, Value value) {
  std::vector<Curve> mine;
  const auto put = [&](std::size_t index, const std::string& name, double bytes, double point) {
    while (mine.size() <= index) mine.push_back({"", colours[mine.size() % colours.size()], in_place, {}});
    mine[index].name = name + (in_place ? ", in place" : "");
    if (point > 0 && std::isfinite(point)) mine[index].points.push_back({bytes, point});
  };
  for (const Result& result : report.results) {
    if (result.in_place != in_place || !belongs(result, report.results.front())) continue;
    const auto bytes = static_cast<double>(result.bytes);
    put(0, "kolo", bytes, value(result, result.time_us.p50));
    const bool has_ways = !result.compare.empty() && !result.compare[0].algorithm.empty();
    const std::size_t peers = has_ways ? 2 : result.compare.size();  // its own choice, and its best way
    for (std::size_t i = 0; i < peers; ++i)
      put(i + 1, result.compare[i].name, bytes, value(result, result.compare[i].time_us.p50));
  }
  for (Curve& curve : mine) curves.push_back(std::move(curve));
}

}  // namespace

std::string plot(const Report& report) {
  std::vector<Curve> bandwidth, time;
  const bool has_bus = report.world.ranks > 1;
  for (const bool in_place : {false, true}) {
    add_curves(bandwidth, report, in_place, [&](const Result& result, double us) {
      const double factor = has_bus && result.algbw_gbs > 0 ? result.busbw_gbs.value_or(0) / result.algbw_gbs : 1;
      return static_cast<double>(result.bytes) / us / 1e3 * factor;
    });
    add_curves(time, report, in_place, [](const Result&, double us) { return us; });
  }
  const double width = left + 2 * panel_width + gap + 30, height = top + panel_height + bottom;
  cli::Svg svg(width, height, "");
  const std::string type = report.results.empty() ? "" : fmt::format(" {}", to_string(report.results.front().dtype));
  label(svg, left, 24, "start",
        fmt::format("{}{}, {} rank{}, {}", report.world.collective, type, report.world.ranks,
                    report.world.ranks == 1 ? "" : "s", report.world.path),
        16);
  draw_panel(svg, bandwidth, has_bus ? "bus bandwidth, GB/s" : "algorithm bandwidth, GB/s", left);
  draw_panel(svg, time, "time, us", left + panel_width + gap);
  draw_legend(svg, time, width);
  return svg.done();
}

}  // namespace kolo::bench
