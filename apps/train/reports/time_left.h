#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// The seconds that a step takes: a mean that follows the last twenty or so. The first two of a run, which reserve
/// memory, count only until there are others.
class StepTime {
 public:
  /// before  of an earlier run, until there are steps of this one
  explicit StepTime(double before = 0) : mean_(before) {}
  void add(double seconds);
  /// 0 before any step.
  double seconds() const { return mean_; }

 private:
  std::int64_t steps_ = 0;
  double mean_ = 0;
};

/// How long a run will still take: its steps, and its evaluations once one has been timed.
class TimeLeft {
 public:
  /// last_step   steps done when the run ends, with an evaluation
  /// eval_every  steps between evaluations
  TimeLeft(std::int64_t last_step, std::int64_t eval_every) : last_step_(last_step), eval_every_(eval_every) {}

  void add(const StepEvent& event);
  void add(const EvalEvent& event) { evaluation_ = event; }

  /// Nothing until a step is known that is none of the first.
  std::optional<double> seconds() const;

 private:
  double evaluation_seconds() const;

  std::int64_t last_step_, eval_every_;
  std::int64_t done_ = 0;   // steps of the training
  std::int64_t timed_ = 0;  // of this run
  StepTime step_;
  std::optional<EvalEvent> evaluation_;  // the last one
};

/// Wall time since then.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// "0:07", "12:34", "1:02:03", "2d 03:04".
std::string duration_text(double seconds);

}  // namespace kolo::train
