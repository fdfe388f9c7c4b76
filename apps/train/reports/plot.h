#pragma once

#include <string>
#include <vector>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// Draws the losses of a run.
class Plot final : public Listener {
 public:
  /// title  stands above the picture
  Plot(std::string path, std::string title);

  void on_step(const StepEvent& event) override;
  void on_eval(const EvalEvent& event) override;

  /// The picture: loss over steps, as SVG. A long run is thinned: each point is the mean of several steps.
  std::string svg() const;

  /// Writes it. Errors: models::ModelError.
  void write() const;

 private:
  struct Point {
    double step = 0, loss = 0;
  };
  std::vector<Point> thinned() const;

  std::string path_, title_;
  std::vector<Point> train_;
  std::vector<Point> held_out_;
};

}  // namespace kolo::train
