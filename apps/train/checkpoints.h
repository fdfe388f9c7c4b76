#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "models/checkpoint/store.h"

namespace kolo::train {

/// Writes a run's checkpoints on a background thread. On rank 0 only.
class CheckpointWriter {
  using Clock = std::chrono::steady_clock;

 public:
  /// every  steps between checkpoints; nothing: only the last one is written
  /// Allocates the memory of the snapshots. Errors: std::bad_alloc; models::ModelError if no thread can be started.
  CheckpointWriter(models::CheckpointStore store, Job& job, std::optional<std::int64_t> every);
  /// Waits for checkpoints in progress.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Takes a checkpoint: copies values and optimizer's state, and returns while they are written. Waits only while both
  /// snapshots are still being written. A checkpoint that cannot be written is reported and lost; training continues.
  ///
  /// collect  gathers the optimizer's state of all ranks into such whole tensors
  void store(std::int64_t steps_done, const std::function<void(std::span<const std::span<float>> to)>& collect);

  /// A line with the number of checkpoints and the pauses of training; empty without any.
  std::string summary() const;

  /// Waits until all are written. Errors: models::ModelError if the last could not be.
  void finish();

 private:
  void run();
  models::Snapshot& free_snapshot();

  models::CheckpointStore store_;
  Job* job_;
  std::array<models::Snapshot, 2> snapshots_;
  std::int64_t taken_ = 0;
  Clock::duration longest_copy_{}, waited_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<models::Snapshot*> free_;     // may be filled
  std::deque<models::Snapshot*> waiting_;  // to be written, the first maybe under way
  bool stop_ = false;
  std::optional<std::string> last_problem_;  // of the newest checkpoint
  std::jthread thread_;
};

/// Restores the newest usable checkpoint on all ranks: rank 0 reads and broadcasts it. Damaged ones are reported and
/// set aside. Returns the steps done: 0 if there is no checkpoint. Collective. Errors: UsageError if the checkpoint is
/// of another run.
std::int64_t resume(Session& session, const models::CheckpointStore& store, Job& job);

/// The text of a checkpoint's state.json: the steps done, and the settings that identify the run.
std::string state_of(Job& job, std::int64_t steps_done);

/// Makes sure that a folder has no checkpoints that a run would mix with its own. Errors: UsageError.
void check_no_checkpoints(const models::CheckpointStore& store);

}  // namespace kolo::train
