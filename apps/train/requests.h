#pragma once

#include <chrono>
#include <optional>

namespace kolo::train {

/// From now on to the end of the process SIGTERM and SIGUSR1 end nothing: they are requests, which are remembered until
/// somebody asks. Several of a kind are one.
void take_signals_as_requests();

/// Whether there was a SIGTERM since then.
bool terminated();

/// What this process is asked for while it trains: to stop, by SIGTERM or because its time is over; or to write a
/// checkpoint and go on, by SIGUSR1.
class Requests {
 public:
  /// max_minutes  from now on; nothing: for ever
  explicit Requests(std::optional<double> max_minutes);

  bool stops() const;
  /// Whether there was a SIGUSR1 since the last call.
  bool take_store();

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
};

}  // namespace kolo::train
