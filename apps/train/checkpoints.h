#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "apps/parallel_model.h"
#include "apps/train/job.h"
#include "models/checkpoint/parts.h"
#include "models/checkpoint/store.h"

namespace kolo::train {

/// Writes a run's checkpoints, of which each rank has a part: training waits for copies in memory, and a thread of each
/// rank writes them.
///
/// A checkpoint is complete once all agree that it is (two-phase commit): in each step every rank says with the step's
/// totals whether its oldest part is on disk; when all are, rank 0's thread completes the checkpoint. If a rank has
/// lost its part, all drop the checkpoint, and training goes on. Threads that write never wait for other ranks, and a
/// rank that waits for a disk keeps talking to the others.
///
/// All member functions but due(), written() and summary() are collective. Without --checkpoint, and for an
/// evaluation only, nothing is ever due.
class CheckpointWriter {
  using Clock = std::chrono::steady_clock;

 public:
  /// Allocates the memory of the snapshots, and makes sure that all ranks can write to one folder. Checkpoints of more
  /// than `steps_done` steps, those of the run that this one resumes, will be written again: they are set aside.
  /// Collective. Errors: UsageError, reported.
  CheckpointWriter(Session& session, Job& job, std::int64_t steps_done) : CheckpointWriter(session, &job, steps_done) {
    if (active_) prepare(steps_done);  // if that throws, the destructor ends the thread
  }
  /// Checkpoints that are not complete are lost.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Whether a checkpoint is to be stored behind so many steps, before an evaluation: asked for, by --every, or at the
  /// end; not one that is stored already.
  bool due(std::int64_t steps_done, bool asked) const;

  /// The held-out loss behind so many steps, the same on every rank: it is noted in the checkpoint of that step, if
  /// there is one. Returns whether one is to be stored now, as the loss is the lowest so far of its kind, or the
  /// checkpoint of the lowest is not there.
  bool measured(std::int64_t steps_done, const models::HeldOut& held_out);

  /// Takes a checkpoint: copies this rank's part, and returns while it is written. Waits only while both snapshots of
  /// some rank are still being written. Values must be complete.
  void store(std::int64_t steps_done);

  /// What this rank says in the next step.
  WrittenParts written();
  /// What all have said: completes or drops the oldest checkpoint if it is time. One that is lost is reported.
  void settle(const WrittenParts& of_all);

  /// Waits until all checkpoints are complete, or lost.
  void complete();
  /// The same. Errors: UsageError, reported, if the last one is lost.
  void finish();

  /// A line with the number of checkpoints and the pauses of training; empty without any.
  std::string summary() const;

 private:
  enum class Fate : unsigned char { writing, on_disk, lost };

  /// This rank's part of a checkpoint that is not complete.
  struct Unfinished {
    std::int64_t step = 0;
    std::optional<models::HeldOut> held_out;
    std::string state;  // on rank 0
    models::Snapshot* snapshot = nullptr;
    Fate fate = Fate::writing;
    models::Seal seal, state_seal;  // once it is on disk
    std::string problem;            // why it is lost
  };

  CheckpointWriter(Session& session, Job* job, std::int64_t stored_at);
  void prepare(std::int64_t steps_done);
  void wait_on_all(const std::function<bool()>& done);
  void write(Unfinished& part);
  void settle_oldest();
  models::Manifest manifest_of(const Unfinished& part);
  bool best_is_gone();
  std::optional<models::BestCheckpoint> look_for_best();
  void note_held_out();
  void commit(const models::Manifest& manifest);
  void drop(std::int64_t step);
  void enqueue(std::deque<std::function<void()>>& queue, std::function<void()> task);
  void run();

  Session* session_;
  Job* job_;
  bool active_;
  models::Part part_;
  std::optional<models::CheckpointStore> store_;
  std::vector<models::CutTensor> tensors_;
  std::array<models::Snapshot, 2> snapshots_;
  std::int64_t stored_at_, measured_at_ = -1, best_at_ = -1;  // steps done
  std::optional<models::HeldOut> best_;                       // the lowest so far
  models::HeldOut measured_;
  std::int64_t taken_ = 0;
  Clock::duration longest_copy_{}, waited_{};

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::deque<Unfinished> unfinished_;    // oldest first; the same checkpoints on every rank
  std::set<std::int64_t> on_their_way_;  // on rank 0: steps whose checkpoints may still become complete
  std::deque<models::Snapshot*> free_;
  std::deque<std::function<void()>> writes_, commits_;  // to be done by the thread, commits first
  bool busy_ = false, stop_ = false;
  std::int64_t lost_ = 0;
  std::optional<std::string> last_problem_;  // of the newest checkpoint
  std::jthread thread_;
};

/// Reports that another checkpoint may be better, if one could not be read.
void report_doubt(const models::BestCheckpoint& best);

/// What a run goes on from.
struct Resumed {
  std::int64_t steps_done = 0;
  bool lacks_evaluation = false;  ///< that is due there: a run that ended before left it out
};

/// Restores the checkpoint that --resume asks for on all ranks: each checks some parts, and reads what it needs of all.
/// Of the newest ones those that are damaged are reported and set aside. Returns 0 steps if there is no checkpoint.
/// Collective. Errors: UsageError if the checkpoint is of another run, or cannot be read now, or the one asked for is
/// damaged or not there, or is the best only of those that can be read.
Resumed resume(Session& session, Job& job);

/// Makes sure that a folder has no checkpoints that a run would mix with its own. Errors: UsageError.
void check_no_checkpoints(const models::CheckpointStore& store);

}  // namespace kolo::train
