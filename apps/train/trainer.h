#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "apps/train/reports/events.h"
#include "apps/train/requests.h"
#include "models/data/prefetcher.h"
#include "models/optim/update.h"

namespace kolo::train {

/// The training loop of one rank.
class Trainer {
 public:
  /// Gathers the optimizer's state of all ranks, of parameters that are split, into such whole tensors.
  using Collect = std::function<void(std::span<const std::span<float>> to)>;
  /// Called with the number of steps done whenever a checkpoint is due, after their update. Calls `collect` once: the
  /// other ranks take part.
  using Store = std::function<void(std::int64_t steps_done, const Collect& collect)>;

  /// job        with the same settings on every rank; it and the session must outlive this
  /// first      steps done by the run that this one resumes
  /// listeners  of steps and evaluations; must outlive this. Ranks other than 0 pass none.
  /// store      on rank 0 if checkpoints are written; else empty
  /// Errors: models::ModelError if there is not enough memory.
  Trainer(Session& session, Job& job, std::int64_t first, std::vector<Listener*> listeners, Store store);

  /// Broadcasts the parameters of rank 0; must be called first. Collective.
  void share_parameters() { job_->parallel().broadcast_parameters(); }

  /// finished: all steps are done. stopped: a rank was asked to (see Requests). given_up: by a listener.
  enum class End : unsigned char { finished, stopped, given_up };

  /// Trains until the end. Collective.
  /// Errors: Error if the ranks cannot go on together; UsageError, reported, if the loss or the gradients are not
  /// finite, or a rank has a problem.
  End run();

  /// Evaluates on the held-out examples. Collective.
  void evaluate(std::int64_t steps_done);

 private:
  std::optional<End> step(std::int64_t step);
  StepEvent event_of(std::int64_t step, const StepResult& result, double seconds, double waited) const;
  void sum_norm(const models::GradientNorm& norm);
  void report_last_step();
  void settle();
  models::Batch next_batch();
  void stop_with(const StepResult& result);
  void check_diverged(const StepEvent& event);
  void check_gradients(const StepEvent& event);
  bool evaluation_due(std::int64_t steps_done) const;
  bool checkpoint_due(std::int64_t steps_done) const;
  void store(std::int64_t steps_done);
  double sum(double value);
  bool listener_gives_up() const;

  Session* session_;
  Job* job_;
  std::int64_t first_;
  std::vector<Listener*> listeners_;
  Store store_;
  Requests requests_;
  models::Update update_;
  std::optional<models::Prefetcher> batches_;
  std::int64_t evaluated_at_ = -1;       // steps done then
  std::optional<StepEvent> unreported_;  // the last step, until its norm is known
  models::GradientNorm norm_;            // its, on its way
  Handle norm_handle_;                   // last, so that it ends before its memory does
};

}  // namespace kolo::train
