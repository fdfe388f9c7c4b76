#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/coordinator/executor.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// Where operations end: their names become free, then their handles are done.
class Completions {
 public:
  /// `on_complete` learns the name of what completed last.
  Completions(PendingQueue& queue, std::function<void(const std::string&)> on_complete)
      : queue_(queue), on_complete_(std::move(on_complete)) {}

  /// One operation is complete; with `failure`, it failed.
  void complete(const SubmissionPtr& submission, const Failure* failure = nullptr) {
    finished_.push_back({submission, failure ? std::optional(*failure) : std::nullopt});
    publish();
  }

  /// What executors append to; publish() follows.
  std::vector<Executor::Finished>& finished() { return finished_; }

  /// Completes all that was appended and is not complete yet.
  void publish();

 private:
  PendingQueue& queue_;
  std::function<void(const std::string&)> on_complete_;
  std::vector<Executor::Finished> finished_;
  std::vector<Submission*> completing_;
};

}  // namespace kolo
