#pragma once

#include <cstdint>

namespace kolo::train {

/// One update of the parameters.
struct StepEvent {
  std::int64_t step = 0;      ///< from 0
  std::int64_t epoch = 0;     ///< from 0
  std::int64_t examples = 0;  ///< over all ranks
  double loss = 0;            ///< mean over these examples, in nats, before the update
  double lr = 0;
  double seconds = 0;       ///< wall time of the step on this rank
  double wait_seconds = 0;  ///< of these, how many the training thread sat in wait()

  double samples_per_s() const { return static_cast<double>(examples) / seconds; }
  double exposed_comm() const { return wait_seconds / seconds; }
};

/// One measurement on the held-out examples.
struct EvalEvent {
  std::int64_t step = 0;  ///< steps done
  double loss = 0;        ///< mean over the examples, in nats
  double accuracy = 0;    ///< 0 … 1
};

/// Who wants to know how the training goes. Called on rank 0 only; must not throw.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void on_step(const StepEvent& event) = 0;
  virtual void on_eval(const EvalEvent& event) = 0;
  /// Whether there is no point in going on: every rank then ends after the next step.
  virtual bool gives_up() const { return false; }
};

}  // namespace kolo::train
