#include "apps/cli/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* colour = "#000") {
  std::string escaped;
  for (const char c : text) escaped += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     escaped);
}

std::string grid_of(const Scale& x, const Scale& y) {
  const double bottom = height - bottom_margin;
  std::string text;
  const auto line = [&](double x1, double y1, double x2, double y2) {
    text += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1, y1, x2,
                        y2);
  };
  for (double value = x.least; value <= x.most + x.step / 2; value += x.step) {
    line(left_margin + x.at(value), bottom, left_margin + x.at(value), top_margin);
    text += text_at(left_margin + x.at(value), bottom + 18, "middle", fmt::format("{:g}", value));
  }
  for (double value = y.least; value <= y.most + y.step / 2; value += y.step) {
    line(left_margin, bottom - y.at(value), width - right_margin, bottom - y.at(value));
    text += text_at(left_margin - 8, bottom - y.at(value) + 4, "end", fmt::format("{:.4g}", value));
  }
  return text;
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
  const auto curve = [&](const std::vector<Point>& points, const char* colour) {
    std::string places;
    for (const Point& point : points)
      places += fmt::format("{:.1f},{:.1f} ", left_margin + x.at(point.step), bottom - y.at(point.loss));
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", places, colour);
  };
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height);
  text += grid_of(x, y) + curve(train, train_colour) + curve(held_out_, held_out_colour);
  for (const Point& point : held_out_) {
    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", left_margin + x.at(point.step),
                        bottom - y.at(point.loss), held_out_colour);
  }
  text += text_at(left_margin, 22, "start", title_);
  text += text_at(width - right_margin - 90, 22, "end", "training loss", train_colour);
  if (!held_out_.empty()) text += text_at(width - right_margin, 22, "end", "held-out loss", held_out_colour);
  return text + text_at((left_margin + width) / 2, height - 12, "middle", "step") + "</svg>\n";
}

void Plot::write() const {
  models::write_new_file(path_, svg());
}

}  // namespace kolo::train
