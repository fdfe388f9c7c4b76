#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "apps/train/reports/events.h"
#include "models/compute/buffer.h"
#include "models/optim/update.h"

namespace kolo::train {

/// Norms of each parameter, now and then: for listeners that follow how layers train.
class ParameterNorms {
 public:
  /// The session and the job must outlive this. Takes part in no step unless there is --tensorboard.
  ParameterNorms(Session& session, Job& job, std::vector<Listener*> listeners);

  /// A step is over: where it is one of every --norms-every, sums the norms over the ranks, and tells the listeners.
  /// Collective.
  void on_step(std::int64_t step, const models::Update& update);

 private:
  std::vector<double> squares(const models::Update& update);

  Session* session_;
  Job* job_;
  std::vector<Listener*> listeners_;
  std::int64_t every_;  // 0: never
  models::Buffer memory_;
};

}  // namespace kolo::train
