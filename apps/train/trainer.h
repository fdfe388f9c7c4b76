#pragma once

#include <cstdint>
#include <vector>

#include <kolo/session.h>

#include "apps/data_parallel.h"
#include "apps/train/events.h"
#include "apps/train/job.h"
#include "apps/train/options.h"
#include "models/data/loader.h"

namespace kolo::train {

/// The training loop of one rank.
class Trainer {
 public:
  /// job        the same on every rank but for the rank; it and the session must outlive this
  /// listeners  told of every step and evaluation; must outlive this. Ranks other than 0 pass none.
  Trainer(Session& session, const Options& options, Job& job, std::vector<Listener*> listeners);

  /// Trains to the end, or until a listener gives up. Collective. Returns whether it came to the end.
  /// Errors: Error if the ranks cannot go on together; Stopped if the loss is no number any more.
  bool run();

 private:
  bool step(std::int64_t step);
  void stop_diverged(std::int64_t step);
  void evaluate(std::int64_t steps_done);
  bool evaluation_due(std::int64_t steps_done, bool end_of_epoch) const;
  bool listener_gives_up() const;

  Session* session_;
  Options options_;
  Job* job_;
  std::vector<Listener*> listeners_;
  DataParallel parallel_;
  models::BatchLoader loader_;
  std::int64_t evaluated_at_ = -1;  // steps done then
};

}  // namespace kolo::train
