#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <kolo/error.h>
#include <kolo/handle.h>

#include "apps/torch/job.h"

namespace kolo_torch {

/// One operation on tensors that is in flight: kolo's handles, what is left to do when they are done, and what has to
/// live until then. Thread-safe.
class Operation final : public std::enable_shared_from_this<Operation> {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  struct Parts {
    std::shared_ptr<Job> job;  ///< whose session the handles are of
    std::vector<kolo::Handle> handles{};
    std::vector<std::shared_ptr<Operation>> operations{};  ///< that it consists of, too
    std::vector<at::Tensor> tensors{};                     ///< what the handles read and write
    std::function<void()> finish{};                        ///< runs once, if no handle has failed; must not block
  };
  explicit Operation(Parts parts);
  /// One that `call` does at once, and waits for; then the same is left to do.
  Operation(const std::function<void()>& call, Parts parts);

  /// Whether it is done: has its results, or has failed.
  bool done();
  /// Waits no longer than until then; whether it is done.
  bool wait_until(Deadline deadline);
  void wait() { wait_until(Deadline::max()); }
  /// How it failed; null if it has not, or is not done yet.
  const kolo::Failure* failure() const { return done_ && failure_ ? &*failure_ : nullptr; }

  /// Runs `task` once it is done, in a thread that may block; until then the operation lives. It must not throw.
  void then(std::function<void()> task);

 private:
  struct Follower;
  using Lock = std::unique_lock<std::timed_mutex>;
  bool wait_with(Lock& lock, Deadline deadline);
  void fail(const kolo::Failure& failure);
  void settle(Lock& lock);

  const std::shared_ptr<Completions> completions_;
  std::timed_mutex waiting_;  // of who waits for the handles: the others wait for it
  Parts parts_;               // once it is done, only the handles, which are empty, and operations
  std::optional<kolo::Failure> failure_;
  std::atomic<bool> done_{false};
};

}  // namespace kolo_torch
