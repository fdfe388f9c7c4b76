#pragma once

#include <chrono>

#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// Which operations of this rank have waited for longer than their time-outs: it reports them to their groups' roots,
/// again and again, which fail them. A root that never answers ends the group.
class Deadlines {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Deadlines(const PendingQueue& queue, Groups& groups) : queue_(queue), groups_(groups) {}

  /// An operation has been announced.
  void add(const Submission& submission);
  /// When look() must be called again, at the latest.
  Time next() const { return next_; }
  /// Goes through everything in flight.
  void look(Time now);

 private:
  void overdue(const SubmissionPtr& submission);

  const PendingQueue& queue_;
  Groups& groups_;
  Time next_ = Time::max();  // of what was added since the last look, and of what was in flight then, the earliest
};

}  // namespace kolo
