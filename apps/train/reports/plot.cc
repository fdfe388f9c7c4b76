#include "apps/train/reports/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/svg.h"
#include "models/util/atomic_file.h"

namespace kolo::train {
namespace {

constexpr double width = 640, height = 360, left_margin = 60, right_margin = 20, top_margin = 40, bottom_margin = 50;
constexpr const char* train_colour = "#0b6e99";
constexpr const char* held_out_colour = "#d9480f";

/// A linear axis from a round number to another, on `length` points.
struct Scale {
  double least = 0, most = 1, step = 1, length = 1;

  Scale(double from, double to, double points) : length(points) {
    const double range = std::max(to - from, 1e-9);
    step = std::pow(10, std::floor(std::log10(range)));
    for (const double finer : {0.2, 0.5}) {
      if (range / (step * finer) <= 8) {
        step *= finer;
        break;
      }
    }
    least = std::floor(from / step) * step;
    most = std::max(std::ceil(to / step), std::floor(from / step) + 1) * step;
  }
  double at(double value) const { return (value - least) / (most - least) * length; }
};

std::string fill(const char* colour) {
  return fmt::format("fill=\"{}\"", colour);
}

void draw_grid(cli::Svg& svg, const Scale& x, const Scale& y) {
  constexpr std::string_view grey = "stroke=\"#ddd\"";
  const double bottom = height - bottom_margin;
  for (double value = x.least; value <= x.most + x.step / 2; value += x.step) {
    const double at = left_margin + x.at(value);
    svg.line(at, bottom, at, top_margin, grey);
    svg.text(at, bottom + 18, "middle", fmt::format("{:g}", value), fill("#000"));
  }
  for (double value = y.least; value <= y.most + y.step / 2; value += y.step) {
    const double at = bottom - y.at(value);
    svg.line(left_margin, at, width - right_margin, at, grey);
    svg.text(left_margin - 8, at + 4, "end", fmt::format("{:.4g}", value), fill("#000"));
  }
}

}  // namespace

Plot::Plot(std::string path, std::string title) : path_(std::move(path)), title_(std::move(title)) {}

void Plot::on_step(const StepEvent& event) {
  if (std::isfinite(event.loss)) train_.push_back({static_cast<double>(event.step), event.loss});
}

void Plot::on_eval(const EvalEvent& event) {
  if (std::isfinite(event.loss)) held_out_.push_back({static_cast<double>(event.step), event.loss});
}

std::vector<Plot::Point> Plot::thinned() const {
  constexpr std::size_t most = 300;
  const std::size_t each = (train_.size() + most - 1) / most;
  std::vector<Point> points;
  for (std::size_t first = 0; first < train_.size(); first += each) {
    const std::size_t last = std::min(first + each, train_.size());
    Point mean;
    for (std::size_t i = first; i < last; ++i) {
      mean.step += train_[i].step / static_cast<double>(last - first);
      mean.loss += train_[i].loss / static_cast<double>(last - first);
    }
    points.push_back(mean);
  }
  return points;
}

std::string Plot::svg() const {
  const std::vector<Point> train = thinned();
  Point least{0, INFINITY}, most{1, -INFINITY};
  for (const auto* points : {&train, &held_out_}) {
    for (const Point& point : *points) {
      least.loss = std::min(least.loss, point.loss);
      most = {std::max(most.step, point.step), std::max(most.loss, point.loss)};
    }
  }
  if (least.loss > most.loss) least.loss = 0, most.loss = 1;
  const double bottom = height - bottom_margin;
  const Scale x(0, most.step, width - left_margin - right_margin), y(least.loss, most.loss, bottom - top_margin);
  cli::Svg svg(width, height, "font-size=\"12\"");
  draw_grid(svg, x, y);
  const auto at = [&](const Point& point) {
    return std::pair(left_margin + x.at(point.step), bottom - y.at(point.loss));
  };
  const auto curve = [&](const std::vector<Point>& points, const char* colour) {
    cli::Svg::Points line;
    for (const Point& point : points) line.push_back(at(point));
    svg.curve(line, colour, "stroke-width=\"1.5\"");
  };
  curve(train, train_colour);
  curve(held_out_, held_out_colour);
  for (const Point& point : held_out_) svg.dot(at(point).first, at(point).second, 3, held_out_colour);
  svg.text(left_margin, 22, "start", title_, fill("#000"));
  svg.text(width - right_margin - 90, 22, "end", "training loss", fill(train_colour));
  if (!held_out_.empty()) svg.text(width - right_margin, 22, "end", "held-out loss", fill(held_out_colour));
  svg.text((left_margin + width) / 2, height - 12, "middle", "step", fill("#000"));
  return svg.done();
}

void Plot::write() const {
  models::write_atomic_file(path_, svg());
}

}  // namespace kolo::train
