#pragma once

#include <chrono>
#include <optional>

namespace kolo::train {

/// From now on to the end of the process SIGTERM and SIGUSR1 end nothing: they are requests, which are remembered until
/// somebody asks. Several of a kind are one.
void take_signals_as_requests();

/// What this process is asked for while it runs: to stop, by SIGTERM or because its time is over; or to write a
/// checkpoint and go on, by SIGUSR1.
class Requests {
 public:
  using Clock = std::chrono::steady_clock;

  /// start        when the program began
  /// max_minutes  from then on; nothing: for ever
  Requests(Clock::time_point start, std::optional<double> max_minutes);

  bool stops() const;
  /// Whether there was a SIGUSR1 since the last call.
  bool take_store();

 private:
  std::optional<Clock::time_point> end_;
};

}  // namespace kolo::train
