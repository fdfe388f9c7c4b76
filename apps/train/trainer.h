#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kolo/session.h>

#include "apps/train/checkpoints.h"
#include "apps/train/evaluator.h"
#include "apps/train/job.h"
#include "apps/train/parameter_norms.h"
#include "apps/train/reports/events.h"
#include "apps/train/requests.h"
#include "models/data/prefetcher.h"
#include "models/optim/update.h"

namespace kolo::train {

/// The training loop of one rank.
class Trainer {
 public:
  /// job          with the same settings on every rank; it, the session and the two others must outlive this
  /// from         what this run resumes
  /// listeners    of steps and evaluations; must outlive this. Ranks other than 0 pass none.
  /// checkpoints  where they go
  /// requests     of this process
  /// Errors: models::ModelError if there is not enough memory.
  Trainer(Session& session, Job& job, const Resumed& from, std::vector<Listener*> listeners,
          CheckpointWriter& checkpoints, Requests& requests);

  /// Broadcasts the parameters of rank 0; must be called first. Collective.
  void share_parameters() { job_->parallel().broadcast_parameters(); }

  /// finished: all steps are done, and measured. unmeasured: a rank was asked to stop, see Requests, before they were
  /// measured. stopped: before the last step. given_up: by a listener.
  enum class End : unsigned char { finished, unmeasured, stopped, given_up };

  /// Trains until the end. Collective.
  /// Errors: Error if the ranks cannot go on together; UsageError, reported, if the loss, the gradients or the
  /// parameters are not finite, or a rank has a problem.
  End run();

 private:
  std::optional<End> step(std::int64_t step);
  StepEvent event_of(std::int64_t step, const StepResult& result) const;
  bool evaluate(std::int64_t steps_done);
  End stop(std::int64_t steps_done);
  double seconds_between_evaluations() const;
  void measure_peak();
  void sum_norm(const models::GradientNorm& norm);
  void know_loss(double loss_sum);
  void report_last_step();
  void settle(std::int64_t steps_done);
  void check_values(std::int64_t steps_done);
  models::Batch next_batch();
  void stop_with(const StepResult& result);
  void check_diverged(const StepEvent& event);
  void check_gradients(const StepEvent& event);
  void store(std::int64_t steps_done);
  double sum(double value);
  bool listener_gives_up() const;

  Session* session_;
  Job* job_;
  Resumed from_;
  std::vector<Listener*> listeners_;
  CheckpointWriter* checkpoints_;
  Requests* requests_;
  models::Update update_;
  Evaluator evaluator_;
  ParameterNorms norms_;
  double peak_flops_ = 0;    // of all ranks; 0: not measured
  double data_seconds_ = 0;  // of the step under way, waiting for batches
  std::optional<models::Prefetcher> batches_;
  std::int64_t evaluated_at_ = -1;       // steps done then
  std::int64_t checked_at_ = -1;         // likewise
  std::optional<StepEvent> unreported_;  // the last step, until its norm and its loss are known
  double unreported_targets_ = 0;
  bool late_loss_ = false, late_norm_ = false;
  models::GradientNorm norm_;  // its, on its way
  Handle norm_handle_;         // last, so that it ends before its memory does
};

}  // namespace kolo::train
