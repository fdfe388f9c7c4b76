#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <kolo/config.h>
#include <kolo/error.h>

#include "runtime/coordinator/callbacks.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// What follows this rank's operations when they are done, beside the threads that wait for them: functions of the
/// program, memory that is let go, and failures that nobody has been told. Thread-safe; an operation that nothing
/// follows costs nothing.
class Continuations {
 public:
  Continuations(PendingQueue& queue, const Config& config) : queue_(queue), config_(config) {}

  /// As of Handle; they do not flush.
  void on_done(const SubmissionPtr& submission, std::function<void(const Error*)> function);
  void detach(const SubmissionPtr& submission, std::shared_ptr<const void> keep_alive);

  /// It is done: throws how it has failed, or else how something did that nobody waits for any more.
  void conclude(const Submission& submission);

  /// Returns when all functions have run whose operations are done; at once in such a function.
  void finish() { callbacks_.finish(); }

 private:
  void follow(const SubmissionPtr& submission, std::function<void()> task);

  PendingQueue& queue_;
  const Config& config_;
  Callbacks callbacks_;
};

}  // namespace kolo
