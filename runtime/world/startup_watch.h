#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <kolo/config.h>

namespace kolo {

/// Watches a rank while it makes a session and MPI lets it wait for ranks that have not come as far: reports which, as
/// far as that can be known, and ends the job after a second, longer time. It covers what comes before the ranks have a
/// channel (from then on StallWatch does): MPI tells nobody who is missing then, so the ranks of a node know each
/// other's progress by the names of their threads.
class StartupWatch {
 public:
  /// rank            this rank in the session
  /// launcher_ranks  the launcher's rank of each rank of the session
  StartupWatch(const Config& config, int rank, std::vector<int> launcher_ranks);
  ~StartupWatch();

 private:
  void watch();
  std::string explain(double waited) const;

  const Config config_;
  const int rank_;
  const std::vector<int> launcher_ranks_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
