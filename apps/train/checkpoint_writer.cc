#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/agreement.h"
#include "apps/cli/terminal.h"
#include "apps/train/checkpoints.h"
#include "models/util/error.h"
#include "models/util/headroom.h"

namespace kolo::train {

CheckpointWriter::CheckpointWriter(models::CheckpointStore store, Job& job, std::optional<std::int64_t> every)
    : store_(std::move(store)), job_(&job), free_{&snapshots_[0], &snapshots_[1]} {
  const std::size_t needed = every ? snapshots_.size() : 1;
  for (std::size_t i = 0; i < needed; ++i) snapshots_[i].copy(job.model(), job.optimizer());
  thread_ = models::start_thread("writes checkpoints", [this] { run(); });  // nothing may fail behind it
}

CheckpointWriter::~CheckpointWriter() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void CheckpointWriter::store(std::int64_t steps_done,
                             const std::function<void(std::span<const std::span<float>> to)>& collect) {
  const auto start = Clock::now();
  models::Snapshot& snapshot = free_snapshot();
  const auto free_at = Clock::now();
  snapshot.step = steps_done;
  snapshot.state = state_of(*job_, steps_done);
  snapshot.copy(job_->model(), job_->optimizer());
  collect(snapshot.optimizer_state());
  ++taken_;
  longest_copy_ = std::max(longest_copy_, Clock::now() - free_at);
  waited_ += free_at - start;
  const std::lock_guard lock(mutex_);
  waiting_.push_back(&snapshot);
  changed_.notify_all();
}

std::string CheckpointWriter::summary() const {
  if (taken_ == 0) return {};
  const auto ms = [](Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
  std::string text = fmt::format("stored    {} checkpoint{}, training stood still for at most {:.1f} ms to copy one",
                                 taken_, taken_ == 1 ? "" : "s", ms(longest_copy_));
  if (ms(waited_) >= 1) text += fmt::format(", and {:.1f} s in all for a slow disk", ms(waited_) / 1000);
  return text + "\n";
}

models::Snapshot& CheckpointWriter::free_snapshot() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
  models::Snapshot& snapshot = *free_.front();
  free_.pop_front();
  return snapshot;
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    models::Snapshot& snapshot = *waiting_.front();
    lock.unlock();
    std::optional<std::string> problem;
    try {
      store_.write(snapshot);
    } catch (const std::exception& error) {
      problem = cli::problem_of(error);
      cli::print_problem(fmt::format("the checkpoint of step {} is lost, those before it are as they were: {}",
                                     snapshot.step, *problem));
    }
    lock.lock();
    last_problem_ = problem;
    waiting_.pop_front();
    free_.push_back(&snapshot);
    changed_.notify_all();
  }
}

void CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty(); });
  if (last_problem_)
    throw models::ModelError(fmt::format("the last checkpoint could not be written: {}", *last_problem_));
}

}  // namespace kolo::train
