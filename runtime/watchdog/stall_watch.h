#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kolo/config.h>

#include "runtime/control/channel.h"
#include "runtime/watchdog/stall_report.h"

namespace kolo {

/// The watchdog: reports which operation waits for which ranks, and ends the job after a second, longer time. It has a
/// thread of its own on every rank, independent of the coordinator, so that it also reports when a peer is frozen or a
/// coordinator stands still: it publishes this rank's operations in flight on the node's status board, and reads the
/// other ranks' entries. Until opened() it watches the creation of the session in the same way.
///
/// The job is ended when this rank has made no progress for so long, with something in flight; the time during which
/// its process was stopped does not count.
class StallWatch {
 public:
  /// in_flight          lists the operations in flight, oldest first; called from the watchdog's thread
  /// abort_device_work  called before the job is ended: frees devices from work that will never end, within a second or
  ///                    so; returns false if it could not
  StallWatch(const Config& config, ControlChannel& control, std::function<std::vector<InFlight>()> in_flight,
             std::function<bool()> abort_device_work);
  ~StallWatch();

  /// Watches from now on. Throws Error{backend} if there is no thread for it.
  void start();

  /// Every rank has made its session: creation is no longer watched.
  void opened();

  /// Something has moved on this rank: an operation, or a message. Any thread.
  void progressed() noexcept { progressed_.store(true, std::memory_order_relaxed); }

  /// The operation that this rank completed last, for other ranks' reports. Any thread.
  void completed(const std::string& name);

 private:
  using Clock = std::chrono::steady_clock;
  /// What a rank's watchdog has published.
  struct Seen {
    std::uint64_t beats = 0;
    Clock::time_point changed;          // when the last entry was first seen
    Clock::time_point published_after;  // the entry; the look before `changed`
    Clock::time_point listed_after;     // what is in it; where the entry before it was published
  };

  void watch();
  void publish(const std::vector<InFlight>& in_flight);
  void listen();
  void judge(const std::vector<InFlight>& in_flight);
  void judge_opening();
  void notice_progress(bool open);
  bool too_long(Clock::time_point since) const;
  Diagnosis diagnose(const InFlight& operation) const;
  std::string name(int rank) const;
  std::string troubles() const;
  bool silent(int rank) const;
  void end_job();

  const Config config_;
  ControlChannel& control_;
  const std::function<std::vector<InFlight>()> in_flight_;
  const std::function<bool()> abort_device_work_;
  const Clock::duration beat_;
  std::uint64_t beats_ = 0;
  std::map<int, Seen> seen_;  // by session rank
  // By sequence and cause: after how many seconds the next report is due.
  std::map<std::pair<std::uint64_t, std::string>, double> reported_;
  const Clock::time_point made_ = Clock::now();
  Clock::time_point last_beat_ = made_, last_look_ = made_, last_progress_ = made_;
  std::atomic<bool> progressed_{false};
  double next_opening_report_ = config_.stall_report_seconds;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool open_ = false;
  std::string last_completed_;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
