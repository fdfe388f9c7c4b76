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

#include "apps/torch/device.h"
#include "apps/torch/job.h"

namespace kolo_torch {

/// One operation on tensors that is in flight: kolo's handles, what is left to do when they are done, and what has to
/// live until then. Thread-safe.
///
/// Of tensors on a GPU: who waits goes on when all is on the GPU's streams, and the calling thread's stream waits for
/// the results; a later failure there is that of an operation after this one.
class Operation final : public std::enable_shared_from_this<Operation> {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  struct Parts {
    std::shared_ptr<Job> job;           ///< whose session the handles are of
    std::vector<at::Tensor> tensors{};  ///< what the handles and `finish` read and write; all on one device
    std::function<void()> finish{};     ///< runs once, if no handle has failed; must not block
    std::vector<std::shared_ptr<Operation>> operations{};  ///< that it consists of, too
    std::vector<kolo::Handle> handles{};                   ///< these end first
  };
  explicit Operation(Parts parts);
  /// One that `call` does at once, and waits for; then the same is left to do.
  Operation(const std::function<void()>& call, Parts parts);

  /// Of its tensors; none: the host.
  const std::optional<c10::Device>& device() const { return device_; }

  /// Whether it is done: has its results in memory, or has failed.
  bool done();
  /// Waits no longer than until then; whether it is done. With a deadline the thread waits for a GPU, too.
  bool wait_until(Deadline deadline);
  void wait() { wait_until(Deadline::max()); }
  /// Whether all is done but what a GPU's streams have to do.
  bool is_under_way() const { return done_; }
  /// How it failed; null if it has not, or is not done yet.
  const kolo::Failure* failure() const { return done_ && failure_ ? &*failure_ : nullptr; }

  /// Runs `task` once it is done, in a thread that may block; until then the operation lives. It must not throw. On a
  /// GPU: once it is under way, on a stream of its own that waits for the results.
  void then(std::function<void()> task);

 private:
  struct Follower;
  using Lock = std::unique_lock<std::timed_mutex>;
  bool wait_with(Lock& lock, Deadline deadline);
  bool arrive(Deadline deadline) const;
  bool has_results() const { return !on_stream_ || on_stream_->query(); }
  void give_up(const char* why);
  void fail(const kolo::Failure& failure);
  void settle(Lock& lock);

  const std::shared_ptr<Completions> completions_;
  std::optional<c10::Device> device_;    // none: the host
  std::optional<c10::Event> on_stream_;  // of a device, once done_: when it has the results
  std::timed_mutex waiting_;             // of who waits for the handles: the others wait for it
  Parts parts_;                          // once it is done, only the handles, which are empty, and operations
  std::optional<kolo::Failure> failure_;
  std::atomic<bool> done_{false};  // but for what streams have to do
};

}  // namespace kolo_torch
