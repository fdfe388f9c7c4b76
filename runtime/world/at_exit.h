#pragma once

#include <functional>

namespace kolo {

/// Makes a session of processes leave when its program calls exit(), or returns from main, without destroying the
/// session. The list of these, whether they have lost ranks, and MPI itself are the library's only process-wide state.
class LeaveAtExit {
 public:
  /// leave  called at exit; `failed` if the exit code is not 0; must be thread-safe
  explicit LeaveAtExit(std::function<void(bool failed)> leave);
  /// A rank of it is gone: whoever waits for all ranks at exit may wait for ever.
  static void lost_a_rank() noexcept;
  /// Waits for a running `leave`.
  ~LeaveAtExit();
  LeaveAtExit(const LeaveAtExit&) = delete;
  LeaveAtExit& operator=(const LeaveAtExit&) = delete;

 private:
  friend void leave_sessions(bool failed) noexcept;

  std::function<void(bool)> leave_;
  LeaveAtExit* next_;  // older
};

/// From now on living sessions leave when this process ends with exit(), or main returns. Idempotent.
void leave_sessions_at_exit();

/// Makes all living sessions leave, the newest first.
void leave_sessions(bool failed) noexcept;

/// Whether a session of this process has lost a rank.
bool have_lost_ranks() noexcept;

}  // namespace kolo
