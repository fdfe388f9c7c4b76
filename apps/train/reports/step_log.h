#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "apps/train/reports/events.h"

namespace kolo::train {

/// A file with one JSON object per line, each written as soon as it is known.
class StepLog final : public FileListener {
 public:
  /// Makes sure that `path` can be written, and leaves what it holds until begin(). Of steps it gets every `every`-th.
  /// Errors: UsageError.
  StepLog(const std::string& path, std::int64_t every);

  /// Keeps the events of the first `steps_done` steps, which an earlier run wrote, and drops the rest. `listeners` get
  /// the events kept.
  ///
  /// measures_again  whether this run begins with an evaluation, which replaces an earlier one at that step
  void begin(std::int64_t steps_done, bool measures_again, std::span<Listener* const> listeners);

  /// Keeps all that is there, and goes on behind it; `listeners` get these events.
  void begin_behind(std::span<Listener* const> listeners);

  void on_eval(const EvalEvent& event) override;

 private:
  void write_step(const StepEvent& event) override;
  bool is_file() const;
  std::string lines_of_first(std::int64_t steps, std::int64_t evals, std::span<Listener* const> listeners) const;
};

}  // namespace kolo::train
