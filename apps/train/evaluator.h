#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "apps/train/midway.h"
#include "apps/train/reports/events.h"
#include "models/data/examples.h"

namespace kolo::train {

/// Evaluations of a run on the held-out examples, of which every rank has an even share. One ends early, and gives
/// nothing, once a rank was asked to stop.
class Evaluator {
 public:
  /// All must outlive this. `listeners` hear of the progress, and of what is reported.
  Evaluator(Session& session, Job& job, std::vector<Listener*> listeners, Midway midway)
      : session_(&session), job_(&job), listeners_(std::move(listeners)), midway_(std::move(midway)) {}

  /// Of every batch. Nothing if no examples are held out. Collective, as the next one.
  std::optional<EvalEvent> evaluate_all();
  /// Of as many as --eval-batches, a checkpoint or an earlier call says. If none does, finds out how many: an
  /// evaluation, finding that out included, takes no longer than `training_seconds`, but is of one batch at least.
  std::optional<EvalEvent> evaluate_some(double training_seconds);

  /// Tells the listeners of an evaluation behind so many steps; of nothing, nothing.
  void report(std::int64_t steps_done, std::optional<EvalEvent> event);

  /// Whether the last evaluation ended early.
  bool stopped() const { return stopped_; }

 private:
  std::optional<EvalEvent> evaluate(std::int64_t most);
  models::EvaluationShare share(std::int64_t most) const;
  std::int64_t most_batches() const;
  std::optional<std::int64_t> affordable(double seconds);

  Session* session_;
  Job* job_;
  std::vector<Listener*> listeners_;
  Midway midway_;
  bool stopped_ = false;
};

/// The seconds that each batch of an evaluation takes, from the first one on: none begins once half of `seconds` has
/// passed, but for the first, or once `goes_on` is false. Errors: as models::evaluate().
std::vector<double> time_batches(models::Model& model, const models::Examples& examples,
                                 const models::EvaluationShare& share, double seconds, const Midway::GoesOn& goes_on);

/// The seconds that a batch takes where the first ones took `took`: of several the first, which reserves memory, does
/// not count, and of the others the middle one does, since any may be held up by other programs. 0 without any.
double seconds_of_batch(std::span<const double> took);

}  // namespace kolo::train
