#pragma once

#include <functional>

namespace kolo {

/// Lets a session whose ranks are processes leave when its program calls exit(), or returns from main, without having
/// destroyed it. The list of these is, with MPI itself, the process-wide state of the library.
class LeaveAtExit {
 public:
  /// leave  called at exit, with whether the program failed (its exit code is not 0); must be thread-safe
  explicit LeaveAtExit(std::function<void(bool failed)> leave);
  /// Waits for `leave` if it is being called.
  ~LeaveAtExit();
  LeaveAtExit(const LeaveAtExit&) = delete;
  LeaveAtExit& operator=(const LeaveAtExit&) = delete;

 private:
  friend void leave_sessions(bool failed) noexcept;

  std::function<void(bool)> leave_;
  LeaveAtExit* next_;  // older
};

/// Lets all sessions leave that still live, the newest first.
void leave_sessions(bool failed) noexcept;

}  // namespace kolo
