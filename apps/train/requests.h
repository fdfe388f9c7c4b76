#pragma once

#include <chrono>
#include <optional>

namespace kolo::train {

/// What this process is asked for while it trains: to stop, by SIGTERM or because its time is over; or to write a
/// checkpoint and go on, by SIGUSR1. One at a time in a process.
class Requests {
 public:
  /// signals      whether they ask, from now on until this is destroyed; else they end the process, as ever
  /// max_minutes  from now on; nothing: for ever
  Requests(bool signals, std::optional<double> max_minutes);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  bool stops() const;
  /// Whether there was a SIGUSR1 since the last call.
  bool take_store();

 private:
  bool signals_;
  std::optional<std::chrono::steady_clock::time_point> end_;
};

}  // namespace kolo::train
