#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <kolo/session.h>

#include "apps/train/job.h"
#include "models/checkpoint_store.h"

namespace kolo::train {

/// Writes checkpoints of a run on a thread of its own. On rank 0 only.
class CheckpointWriter {
 public:
  /// every  steps between checkpoints; nothing: only the last
  CheckpointWriter(models::CheckpointStore store, Job& job, std::optional<std::int64_t> every);
  /// Waits for those under way.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Takes a checkpoint if one is due: copies values and optimizer's state, and returns while they are written. Waits
  /// only if the two before are still being written. One that cannot be written is lost with a message; the training
  /// goes on.
  void step_done(std::int64_t steps_done);

  /// Waits until all are written. Errors: models::ModelError if the last could not be.
  void finish();

 private:
  void run();
  models::Snapshot& free_snapshot();

  models::CheckpointStore store_;
  Job* job_;
  std::optional<std::int64_t> every_;
  std::array<models::Snapshot, 2> snapshots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<models::Snapshot*> free_;     // may be filled
  std::deque<models::Snapshot*> waiting_;  // to be written, the first maybe under way
  bool stop_ = false;
  std::optional<std::string> last_problem_;  // of the newest checkpoint
  std::jthread thread_;
};

/// Puts a run where the newest usable checkpoint left it, on all ranks: rank 0 reads, the others are told. What cannot
/// be used is said, and set aside. Returns the steps done: 0 if there is no checkpoint. Collective. Errors: Stopped if
/// the checkpoint is of another run.
std::int64_t resume(Session& session, const models::CheckpointStore& store, Job& job);

/// Makes sure that a folder has no checkpoints that a run would mix with its own. Errors: UsageError.
void check_no_checkpoints(const models::CheckpointStore& store);

}  // namespace kolo::train
