#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <kolo/config.h>

namespace kolo {

/// The watchdog until the ranks have a channel, when StallWatch takes over: while MPI waits for ranks that have not
/// reached the creation of the session, it reports those of this node, and aborts the job after a second, longer time.
/// MPI does not say which ranks are missing, so the ranks of a node see each other's progress in the names of threads.
class StartupWatch {
 public:
  /// rank            this rank in the session
  /// launcher_ranks  the launcher's rank of each rank of the session
  /// end_job         ends all of them with an exit code, when the time is over; if it returns this process ends by
  ///                 itself; null: nobody ends
  StartupWatch(const Config& config, int rank, std::vector<int> launcher_ranks,
               std::function<void(int exit_code)> end_job);
  ~StartupWatch();

 private:
  void watch();
  [[noreturn]] void end_job() const;
  std::string explain(double waited) const;

  const Config config_;
  const int rank_;
  const std::vector<int> launcher_ranks_;
  const std::function<void(int exit_code)> end_job_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
