#include "runtime/watchdog/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/control/started_thread.h"

namespace kolo {

StallWatch::StallWatch(const Config& config, ControlChannel& control, std::function<std::vector<InFlight>()> in_flight,
                       std::function<bool()> abort_device_work)
    : config_(settings_of_watch(config, control.may_end_job())),
      control_(control),
      in_flight_(std::move(in_flight)),
      abort_device_work_(std::move(abort_device_work)),
      beat_(watch_beat(config_)) {}

void StallWatch::start() {
  thread_ = started_thread("watches what waits", [this] { watch(); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void StallWatch::opened() {
  const std::lock_guard lock(mutex_);
  open_ = true;
}

void StallWatch::completed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  last_completed_ = name;
}

void StallWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, beat_, [this] { return stop_; })) {
    const bool open = open_;
    lock.unlock();
    notice_progress(open);
    const auto in_flight = in_flight_();
    publish(in_flight);
    listen();
    if (open) judge(in_flight);
    lock.lock();
    if (!open && !open_) judge_opening();  // under the lock: no report follows opened()
  }
}

void StallWatch::notice_progress(bool open) {
  const auto now = Clock::now();
  const auto late = now - last_beat_ - beat_;
  if (open && progressed_.exchange(false)) last_progress_ = now;
  if (late > 2 * beat_ + std::chrono::seconds(1)) last_progress_ += late;  // the process was stopped meanwhile
  last_beat_ = now;
}

/// Whether what waits since then is to end the job.
bool StallWatch::too_long(Clock::time_point since) const {
  return config_.stall_abort_seconds > 0 &&
         seconds_since(std::max(since, last_progress_)) > config_.stall_abort_seconds;
}

void StallWatch::publish(const std::vector<InFlight>& in_flight) {
  StatusBoard::Entry entry;
  entry.beats = ++beats_;
  for (const InFlight& operation : in_flight) {
    if (entry.waiting.size() == StatusBoard::max_waiting) break;
    entry.waiting.push_back(StatusBoard::key(operation.group->key(), operation.name, operation.occurrence));
  }
  {
    const std::lock_guard lock(mutex_);
    entry.last_completed = last_completed_;
  }
  control_.board().publish(entry);
}

void StallWatch::listen() {
  const auto before = std::exchange(last_look_, Clock::now());
  for (int rank : control_.board().ranks()) {
    const auto entry = control_.board().read(rank);
    Seen& seen = seen_.try_emplace(rank, Seen{0, last_look_, before, before}).first->second;
    if (!entry || entry->beats == seen.beats) continue;
    seen = {entry->beats, Clock::now(), before, seen.published_after};
  }
}

/// A rank is silent if its watchdog has missed several beats: its process is stopped, dead or starved of CPU time.
bool StallWatch::silent(int rank) const {
  const auto found = seen_.find(rank);
  return found != seen_.end() && Clock::now() - found->second.changed > 4 * beat_ + std::chrono::milliseconds(500);
}

/// Reports one line per cause once an operation has waited too long: about the oldest with that cause.
void StallWatch::judge(const std::vector<InFlight>& in_flight) {
  struct Stall {
    const InFlight* oldest;
    Diagnosis diagnosis;
    std::size_t others = 0;
  };
  std::map<std::string, Stall> stalls;
  const auto limit = config_.stall_abort_seconds > 0
                         ? std::min(config_.stall_report_seconds, config_.stall_abort_seconds)
                         : config_.stall_report_seconds;
  if (!in_flight.empty() && seconds_since(in_flight.front().since) >= limit) {
    for (const InFlight& operation : in_flight) {
      if (Clock::now() - operation.since < 2 * beat_) continue;  // peers may not have published it yet
      Diagnosis diagnosis = diagnose(operation);
      const auto cause = diagnosis.cause();
      const auto [stall, is_new] = stalls.try_emplace(cause, Stall{&operation, std::move(diagnosis)});
      if (!is_new) ++stall->second.others;
    }
  }
  for (const auto& [cause, stall] : stalls) {
    const double waited = seconds_since(stall.oldest->since);
    double& next = reported_.try_emplace({stall.oldest->sequence, cause}, config_.stall_report_seconds).first->second;
    const bool ends = too_long(stall.oldest->since);
    if (waited < next && !ends) continue;
    next = 2 * waited;
    const auto line = fmt::format(
        "rank {}: {}", control_.rank(),
        explain_stall(*stall.oldest, waited, stall.diagnosis, stall.others, [this](int rank) { return name(rank); }));
    report(config_, line + troubles() + (ends ? ending_the_job(config_) : ""));
    if (ends) end_job();
  }
  std::erase_if(reported_, [&](const auto& entry) {
    return std::none_of(in_flight.begin(), in_flight.end(),
                        [&](const InFlight& operation) { return operation.sequence == entry.first.first; });
  });
}

/// A rank whose watchdog has never published has not created its session yet.
void StallWatch::judge_opening() {
  const double waited = seconds_since(made_);
  const bool ends = too_long(made_);
  if (waited < next_opening_report_ && !ends) return;
  next_opening_report_ = 2 * waited;
  LateRanks late;
  const auto& here = control_.board().ranks();
  for (int rank = 0; rank < control_.topology().size(); ++rank) {
    if (rank == control_.rank()) continue;
    if (!std::binary_search(here.begin(), here.end(), rank)) {
      late.unknown.add(rank);
    } else if (seen_.at(rank).beats == 0 || silent(rank)) {
      late.missing.push_back(name(rank));
    }
  }
  report(config_, explain_opening(control_.rank(), waited, late) + troubles() + (ends ? ending_the_job(config_) : ""));
  if (ends) control_.abort_job(stall_exit_code);
}

std::string StallWatch::troubles() const {
  const std::string troubles = control_.troubles();
  return troubles.empty() ? "" : "; " + troubles;
}

void StallWatch::end_job() {
  if (!abort_device_work_()) {
    report(config_,
           fmt::format("rank {}: what runs on its GPU was not ended within a second (a call of NCCL or CUDA does not "
                       "return); the process ends as it is",
                       control_.rank()));
  }
  control_.abort_job(stall_exit_code);
}

Diagnosis StallWatch::diagnose(const InFlight& operation) const {
  const auto key = StatusBoard::key(operation.group->key(), operation.name, operation.occurrence);
  const auto& here = control_.board().ranks();
  Diagnosis diagnosis;
  diagnosis.agreed = operation.agreed;  // then every rank has submitted it, and some may have completed it
  for (int rank : operation.group->ranks) {
    const bool on_board = std::binary_search(here.begin(), here.end(), rank);
    const bool stopped = on_board && rank != control_.rank() && silent(rank);
    if (stopped && diagnosis.agreed) diagnosis.stopped.add(rank);
    if (rank == control_.rank() || diagnosis.agreed) {
      diagnosis.have.add(rank);
      continue;
    }
    if (!on_board) {
      diagnosis.remote.add(rank);
      continue;
    }
    const auto entry = control_.board().read(rank);
    if (entry && std::find(entry->waiting.begin(), entry->waiting.end(), key) != entry->waiting.end()) {
      diagnosis.have.add(rank);
      if (stopped) diagnosis.stopped.add(rank);
    } else if (stopped || seen_.at(rank).listed_after < operation.since) {
      diagnosis.silent.add(rank);  // what it last said may be older than its operation
    } else if (entry && entry->waiting.size() == StatusBoard::max_waiting) {
      diagnosis.crowded.add(rank);
    } else {
      diagnosis.missing.add(rank);
    }
  }
  return diagnosis;
}

/// "rank 1 (host h, pid 12, silent for 12.3 s: stopped or dead; last completed 'loss')".
std::string StallWatch::name(int rank) const {
  const auto& place = control_.topology().places[static_cast<std::size_t>(rank)];
  const auto entry = control_.board().read(rank);
  const Seen& seen = seen_.at(rank);
  const bool stopped = silent(rank) && seen.beats > 0;
  std::string text = fmt::format("rank {} (host {}, pid {}", rank, place.host, place.pid);
  if (stopped) text += fmt::format(", silent for {:.1f} s: stopped or dead", seconds_since(seen.changed));
  if (entry && !entry->last_completed.empty()) {
    text += fmt::format("{} last completed '{}'", stopped ? ";" : ",", entry->last_completed);
  }
  return text + ")";
}

}  // namespace kolo
