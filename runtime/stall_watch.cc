#include "runtime/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/mismatch.h"

namespace kolo {
namespace {

using Seconds = std::chrono::duration<double>;

Seconds::rep seconds_since(std::chrono::steady_clock::time_point start) {
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

/// Often enough for the shortest time in the settings, and at most once a second: an idle rank stays idle.
std::chrono::steady_clock::duration beat_for(const Config& config) {
  double beat = std::min(1.0, config.stall_report_seconds / 4);
  if (config.stall_abort_seconds > 0) beat = std::min(beat, config.stall_abort_seconds / 4);
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(std::max(beat, 0.01)));
}

}  // namespace

StallWatch::StallWatch(const Config& config, ControlChannel& control, const PendingQueue& queue)
    : config_(config), control_(control), queue_(queue), beat_(beat_for(config)), thread_([this] { watch(); }) {}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void StallWatch::completed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  last_completed_ = name;
}

void StallWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, beat_, [this] { return stop_; })) {
    lock.unlock();
    const auto in_flight = queue_.in_flight();
    publish(in_flight);
    listen();
    judge(in_flight);
    lock.lock();
  }
}

void StallWatch::publish(const std::vector<SubmissionPtr>& in_flight) {
  StatusBoard::Entry entry;
  entry.beats = ++beats_;
  for (const SubmissionPtr& submission : in_flight) {
    if (entry.waiting.size() == StatusBoard::max_waiting) break;
    entry.waiting.push_back(StatusBoard::key(submission->group->id, submission->name));
  }
  {
    const std::lock_guard lock(mutex_);
    entry.last_completed = last_completed_;
  }
  control_.board().publish(entry);
}

void StallWatch::listen() {
  for (int rank : control_.board().ranks()) {
    const auto entry = control_.board().read(rank);
    Seen& seen = seen_.try_emplace(rank, Seen{0, Clock::now()}).first->second;
    if (!entry || entry->beats == seen.beats) continue;
    seen = {entry->beats, Clock::now()};
  }
}

/// A rank is silent if its watchdog has missed several beats: the process is stopped, dead or out of CPU time.
bool StallWatch::silent(int rank) const {
  const auto found = seen_.find(rank);
  return found != seen_.end() && Clock::now() - found->second.changed > 4 * beat_ + std::chrono::milliseconds(500);
}

void StallWatch::judge(const std::vector<SubmissionPtr>& in_flight) {
  for (const SubmissionPtr& submission : in_flight) {
    const double waited = seconds_since(submission->submitted);
    double& next = reported_.try_emplace(submission->sequence, config_.stall_report_seconds).first->second;
    const bool too_long = config_.stall_abort_seconds > 0 && waited > config_.stall_abort_seconds;
    if (waited < next && !too_long) continue;
    next = std::max(2 * next, waited);
    auto line = explain(*submission, waited);
    if (too_long) line += fmt::format("; ending the job (KOLO_STALL_ABORT_SECONDS={})", config_.stall_abort_seconds);
    config_.report(line);
    if (too_long) control_.abort_job(exit_code);
  }
  std::erase_if(reported_, [&](const auto& entry) {
    return std::none_of(in_flight.begin(), in_flight.end(),
                        [&](const SubmissionPtr& submission) { return submission->sequence == entry.first; });
  });
}

/// "rank 0: all_reduce 'grad' in group world has waited for 10.2 s: submitted by ranks 0, 2; not submitted by rank 1 (host h,
/// pid 12, last completed 'loss')".
std::string StallWatch::explain(const Submission& submission, double waited) const {
  const auto key = StatusBoard::key(submission.group->id, submission.name);
  RankSet have, unknown, crowded;
  std::string missing;
  int missing_count = 0;
  for (int rank : submission.group->ranks) {
    if (rank == control_.rank()) {
      have.add(rank);
      continue;
    }
    const auto& on_board = control_.board().ranks();
    if (!std::binary_search(on_board.begin(), on_board.end(), rank)) {
      unknown.add(rank);
      continue;
    }
    const auto entry = control_.board().read(rank);
    const bool waits = entry && std::find(entry->waiting.begin(), entry->waiting.end(), key) != entry->waiting.end();
    if (waits && !silent(rank)) {
      have.add(rank);
      continue;
    }
    if (entry && entry->waiting.size() == StatusBoard::max_waiting && !silent(rank)) {
      crowded.add(rank);
      continue;
    }
    const auto& place = control_.topology().places[static_cast<std::size_t>(rank)];
    const std::string state = silent(rank) ? fmt::format(", silent for {:.1f} s: stopped or dead", seconds_since(seen_.at(rank).changed)) : "";
    const std::string last = entry && !entry->last_completed.empty() ? fmt::format(", last completed '{}'", entry->last_completed) : "";
    missing += fmt::format("{}rank {} (host {}, pid {}{}{})", missing_count++ == 0 ? "" : ", ", rank, place.host, place.pid, last, state);
  }
  std::string line = fmt::format("rank {}: {} has waited for {:.1f} s: submitted by {}", control_.rank(),
                                 describe(submission.signature.kind, submission.name, submission.group->name), waited, to_string(have));
  if (missing_count > 0) line += "; not submitted by " + missing;
  if (!unknown.empty()) line += fmt::format("; not known of {} (on other nodes)", to_string(unknown));
  if (!crowded.empty()) line += fmt::format("; not known of {} ({} older operations wait there)", to_string(crowded), StatusBoard::max_waiting);
  if (missing_count == 0 && unknown.empty() && crowded.empty()) line += submission.agreed ? "; running" : "; not agreed yet";
  return line;
}

}  // namespace kolo
