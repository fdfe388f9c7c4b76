#pragma once

#include <functional>
#include <memory>

#include "ops/gpu/gpu.h"
#include "ops/nccl/table.h"

namespace kolo {

/// How a call of NCCL, or several, ended.
struct NcclOutcome {
  NcclResult result = NcclResult::success;
  const char* call = "";  ///< the one that failed; of static lifetime
};

/// Calls of blocking communicators that may wait for other ranks, on a thread of their own: one piece of work at a
/// time. The thread outlives this object if the work does not return, and touches nothing but what the work holds.
class NcclHelper final {
 public:
  using Work = std::function<NcclOutcome()>;

  /// Begins `work`, which may use `gpu`. Nothing is under way. Where there can be no thread it runs here.
  void start(Gpu& gpu, Work work);
  /// Whether something was begun whose outcome nobody has taken.
  bool used() const { return state_ != nullptr; }
  /// Whether something is under way: begun, and not returned.
  bool busy() const;
  /// How the last work ended; success if that was asked for already, or there was none.
  NcclOutcome take_outcome();
  /// Nobody asks any more. Once what is under way has returned, `then` is run, by its thread; or here, at once.
  void forget(std::function<void()> then = {});

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kolo
