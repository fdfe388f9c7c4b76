#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "apps/train/reports/events.h"
#include "models/data/examples.h"

namespace kolo::train {

/// Evaluations of a run on the held-out examples, of which every rank has an even share.
class Evaluator {
 public:
  /// All must outlive this. `listeners` hear of the progress.
  Evaluator(Session& session, Job& job, std::vector<Listener*> listeners)
      : session_(&session), job_(&job), listeners_(std::move(listeners)) {}

  /// Of every batch. Nothing if no examples are held out. Collective, as the next.
  std::optional<EvalEvent> evaluate_all();
  /// Of as many as --eval-batches says; without it, of as many as take no longer than `training_seconds`, which the
  /// first call finds out: later ones evaluate the same batches, so that losses compare.
  std::optional<EvalEvent> evaluate_some(double training_seconds);

 private:
  std::optional<EvalEvent> evaluate(std::int64_t most);
  models::EvaluationShare share(std::int64_t most) const;
  std::int64_t affordable(double seconds);

  Session* session_;
  Job* job_;
  std::vector<Listener*> listeners_;
};

}  // namespace kolo::train
