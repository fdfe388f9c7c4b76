#pragma once

#include <functional>

namespace kolo {

/// Makes a session of processes leave when its program calls exit(), or returns from main, without destroying the
/// session. The list of these and MPI itself are the library's only process-wide state.
class LeaveAtExit {
 public:
  /// leave  called at exit; `failed` if the exit code is not 0; must be thread-safe
  explicit LeaveAtExit(std::function<void(bool failed)> leave);
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

}  // namespace kolo
