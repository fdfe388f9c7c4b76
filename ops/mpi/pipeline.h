#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "ops/mpi/transfer.h"
#include "ops/step_budget.h"

namespace kolo {

/// A bucket's place in the pipeline. Lives from enqueue() until it is complete, or until abandon().
struct MpiJob {
  Bucket bucket;
  Chunk upcoming;  ///< the first chunk that has not begun
  bool complete = false;
};

/// The chunks of all operations of one group, in the order in which the operations were started, on their way through
/// MPI.
///
/// Chunks are numbered; number s uses transfer s % transfers. Chunks below `finished_` are done, those below `begun_`
/// have started their first phase. A chunk starts a phase after the one before it: so of all that are in one phase,
/// only the first is looked at. Several chunks are on their way at once, also of different operations, so that one's
/// reduction overlaps with the others' communication: as many as there are transfers, if other groups have left staging
/// for them, and one in any case.
class MpiPipeline {
 public:
  /// `group`: as for the constructors of MpiGroup.
  template <class... Group>
  explicit MpiPipeline(Group&&... group) : group_(std::forward<Group>(group)...) {}

  MpiGroup& group() { return group_; }

  void enqueue(MpiJob& job);

  /// Copied into and out of staging so far.
  std::uint64_t staged_bytes() const;

  /// Moves on what can without waiting, within the budget of a round (see StepBudget). Returns whether anything did, or
  /// may with the next one. Throws Error{backend | aborted}, and then again for ever.
  bool advance(std::uint64_t& round);

  /// No job is touched any more, and what has not begun to arrive is not received; advance() throws Error{aborted}.
  void abandon() noexcept;
  bool failed() const { return failure_.has_value(); }

 private:
  Chunk chunk_from(const Bucket& bucket, BucketPosition position) const;
  bool begin_next();
  bool proceed();
  bool finish_next();
  void spend(const MpiTransfer& transfer) { budget_.spend(static_cast<std::int64_t>(transfer.bytes())); }
  MpiTransfer& transfer(std::uint64_t chunk) { return transfers_[chunk % transfers_.size()]; }

  MpiGroup group_;
  std::vector<MpiTransfer> transfers_;  // none before the first job
  std::vector<MpiJob*> last_of_;        // per transfer: the job whose last chunk it carries, else null
  std::list<MpiJob*> jobs_;             // with chunks that have not begun
  std::uint64_t begun_ = 0;
  std::uint64_t finished_ = 0;
  StepBudget budget_;  // of chunks' bytes, counted in each phase
  std::optional<Failure> failure_;
};

}  // namespace kolo
