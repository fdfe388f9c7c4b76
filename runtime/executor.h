#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/backend.h>

#include "runtime/submission.h"

namespace kolo {

/// Runs the agreed buckets of one group: starts each on the first backend that supports it and steps all that are in flight.
class Executor {
 public:
  struct Finished {
    SubmissionPtr submission;
    std::optional<Failure> failure;
  };

  explicit Executor(BackendList backends) : backends_(std::move(backends)) {}

  /// Whether some backend can run this; the same answer on every rank.
  bool supports(const Signature& signature) const;

  /// Starts a bucket; its members share everything but their shapes. A barrier has nothing to move and is complete at once.
  void start(std::vector<SubmissionPtr> members);

  /// Advances everything in flight and appends what completed. Returns whether anything did. Throws Error if an operation
  /// failed: what was in flight cannot be trusted any more, call abandon().
  bool step(std::vector<Finished>& finished);

  /// Fails everything in flight and tells the backends that the group is of no more use.
  void abandon(const Failure& failure, std::vector<Finished>& finished);

  bool busy() const { return !running_.empty(); }
  /// Whether only step() shows that an operation in flight has advanced.
  bool needs_polling() const;
  std::uint64_t buckets_started() const { return buckets_started_; }

 private:
  struct Running {
    std::unique_ptr<Operation> operation;  // null: complete
    std::vector<SubmissionPtr> members;
  };

  BackendList backends_;
  std::deque<Running> running_;
  std::uint64_t buckets_started_ = 0;
};

}  // namespace kolo
