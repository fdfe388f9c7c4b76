#pragma once

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
#include "runtime/coordinator/pending_queue.h"
#include "runtime/watchdog/stall_report.h"

namespace kolo {

/// Says who waits for whom. A thread of its own on every rank, independent of the coordinator: it publishes what this
/// rank has waited for on the node's status board, reads what the other ranks wait for, and reports an operation that
/// waits for too long, also when a peer is frozen or its coordinator stands still. After a second, longer time it ends
/// the job. It does the same for the session itself until opened() says that all ranks have come.
class StallWatch {
 public:
  /// `abort_device_work` is called before this ends the job: it frees devices from work that will never end, if it can,
  /// within a second or so; and returns whether it did.
  StallWatch(const Config& config, ControlChannel& control, const PendingQueue& queue,
             std::function<bool()> abort_device_work);
  ~StallWatch();

  /// Every rank has made its session.
  void opened();

  /// For other ranks' reports. Any thread.
  void completed(const std::string& name);

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {
    std::uint64_t beats = 0;
    Clock::time_point changed;
  };

  void watch();
  void publish(const std::vector<SubmissionPtr>& in_flight);
  void listen();
  void judge(const std::vector<SubmissionPtr>& in_flight);
  void judge_opening();
  Diagnosis diagnose(const Submission& submission) const;
  std::string name(int rank) const;
  bool silent(int rank) const;
  void end_job();

  const Config config_;
  ControlChannel& control_;
  const PendingQueue& queue_;
  const std::function<bool()> let_go_;
  const Clock::duration beat_;
  std::uint64_t beats_ = 0;
  std::map<int, Seen> seen_;  // by session rank
  std::map<std::pair<std::uint64_t, std::string>, double>
      reported_;  // by sequence and cause: seconds until the next report
  const Clock::time_point made_ = Clock::now();
  double next_opening_report_ = config_.stall_report_seconds;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool open_ = false;
  std::string last_completed_;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
