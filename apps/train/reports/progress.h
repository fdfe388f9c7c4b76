#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/reports/events.h"
#include "apps/train/reports/time_left.h"

namespace kolo::train {

/// Prints the progress of the training: on a terminal one line that is overwritten, and kept after an evaluation;
/// elsewhere a line for each evaluation and at least one every two seconds.
class Progress final : public Listener {
 public:
  /// first            steps done before this run
  /// last_step        steps that will be done when it ends
  /// steps_per_epoch  for the number of epochs
  /// eval_every       steps between evaluations
  Progress(std::int64_t first, std::int64_t last_step, std::int64_t steps_per_epoch, std::int64_t eval_every);
  /// Ends an unfinished line.
  ~Progress() override;

  void on_step(const StepEvent& event) override;
  void on_eval(const EvalEvent& event) override;
  void on_part(const PartEvent& event) override;

  /// Ends the current line.
  void end_line();

  /// The summary at the end: some lines of text.
  std::string summary(int ranks) const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Sums over steps.
  struct Sums {
    std::int64_t steps = 0;
    std::int64_t examples = 0;
    std::int64_t tokens = 0;
    std::int64_t skipped = 0;  ///< of these steps
    double loss = 0;           ///< weighed by examples
    double seconds = 0;
    double wait_seconds = 0;
    double data_seconds = 0;
    double flops = 0;

    void add(const StepEvent& event);
    double mean_loss() const { return loss / static_cast<double>(examples); }
    /// "1234 samples/s", or tokens if there are any.
    std::string speed() const;
    double waiting_percent() const { return 100 * wait_seconds / seconds; }
    double data_percent() const { return 100 * data_seconds / seconds; }
  };

  std::int64_t steps_done() const { return first_ + all_.steps; }
  std::string line(bool stays) const;
  void show(bool stays);
  void print_line(std::string text, bool stays);
  Clock::duration pause() const;
  double elapsed() const;
  std::string text_of_speed(int ranks) const;

  std::int64_t first_;
  std::int64_t last_step_;
  std::int64_t steps_per_epoch_;
  bool live_;  // whether a line may be overwritten
  bool line_open_ = false;
  Clock::time_point start_;
  Clock::time_point shown_;  // when the last line was written
  Clock::time_point part_began_;
  std::int64_t part_shown_ = 0;  // percent
  Sums all_;
  Sums recent_;       // since the last evaluation
  Sums before_eval_;  // what recent_ was then
  StepEvent last_;    // the last step
  TimeLeft left_;
  std::optional<EvalEvent> eval_;
};

}  // namespace kolo::train
