#include "runtime/world/startup_watch.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "runtime/control/topology.h"
#include "runtime/watchdog/stall_report.h"
#include "runtime/world/launcher.h"

namespace kolo {
StartupWatch::StartupWatch(const Config& config, int rank, std::vector<int> launcher_ranks,
                           std::function<void(int exit_code)> end_job)
    : config_(settings_of_watch(config, end_job != nullptr)),
      rank_(rank),
      launcher_ranks_(std::move(launcher_ranks)),
      end_job_(std::move(end_job)) {
  try {
    thread_ = std::jthread([this] { watch(); });
  } catch (const std::system_error&) {  // no thread, no reports: the other ranks must not wait for this one
  }
}

StartupWatch::~StartupWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void StartupWatch::watch() {
  pthread_setname_np(pthread_self(), opening_thread);
  double next = config_.stall_report_seconds;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, watch_beat(config_), [this] { return stop_; })) {
    const double waited = seconds_since(start_);
    const bool too_long = config_.stall_abort_seconds > 0 && waited > config_.stall_abort_seconds;
    if (waited < next && !too_long) continue;
    next = 2 * waited;
    report(config_, explain(waited) + (too_long ? ending_the_job(config_) : ""));
    if (too_long) end_job();
  }
}

void StartupWatch::end_job() const {
  std::fflush(nullptr);
  end_job_(stall_exit_code);
  std::_Exit(stall_exit_code);
}

std::string StartupWatch::explain(double waited) const {
  const auto here = local_ranks();
  LateRanks late;
  for (int rank = 0; rank < static_cast<int>(launcher_ranks_.size()); ++rank) {
    if (rank == rank_) continue;
    const auto launched = launcher_ranks_[static_cast<std::size_t>(rank)];
    const auto seen =
        std::find_if(here.begin(), here.end(), [&](const LocalRank& local) { return local.rank == launched; });
    if (seen == here.end()) {
      late.unknown.add(rank);
    } else if (!seen->opening || seen->stopped) {
      late.missing.push_back(
          fmt::format("rank {} (host {}, pid {}{})", rank, host_name(), seen->pid, seen->stopped ? ": stopped" : ""));
    }
  }
  return explain_opening(rank_, waited, late);
}

}  // namespace kolo
