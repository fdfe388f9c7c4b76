#pragma once

#include <string>
#include <vector>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// Collects the losses of a run and draws them.
class Plot final : public Listener {
 public:
  /// title  what stands above the picture
  Plot(std::string path, std::string title);

  void on_step(const StepEvent& event) override;
  void on_eval(const EvalEvent& event) override;

  /// The picture: loss over steps, as SVG. Of many steps each dot of the line is the mean of some.
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
