#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ops/shm/access.h"
#include "ops/shm/board.h"
#include "ops/shm/growth.h"
#include "ops/shm/store_policy.h"
#include "ops/shm/transfer.h"
#include "ops/step_budget.h"

namespace kolo {

/// The chunks of all operations of one group, in the order in which the operations were started, on their way through
/// the ranks' memory.
///
/// Chunks are numbered; number c uses transfer c % in_flight, a power of two. Three counters say how far this rank is:
/// chunks below `collected_` are done, those below `combined_` and `packed_` are through with these phases. Each grows
/// by one at a time, and all phases do what they can in turn: while a rank waits for the others' part of one chunk it
/// packs the next ones, and writes back an earlier one.
class ShmPipeline final {
 public:
  /// memory           of this rank
  /// members          the ranks of the group, as `memory` counts them
  /// tuning, report   see ShmGrowth
  ShmPipeline(ShmBoard board, const std::shared_ptr<ShmMemory>& memory, const std::vector<int>& members,
              const ShmTuning& tuning, ShmChooser chooser, const std::function<void(const std::string&)>& report);
  ShmPipeline(const ShmPipeline&) = delete;
  ShmPipeline& operator=(const ShmPipeline&) = delete;

  const ShmBoard& board() const { return board_; }
  const ShmChooser& chooser() const { return access_.chooser(); }

  /// Does all of a small operation, if this rank has nothing else on its way and need not wait for others. Returns
  /// whether it is complete.
  bool complete_at_once(const Bucket& bucket);

  /// The job lives until it is complete, or until abandon().
  void enqueue(ShmJob& job);

  /// Moves on what can without waiting, within the budget of a round (see StepBudget). Returns whether jobs that are
  /// not complete may become so: false once the group is broken up.
  bool advance(std::uint64_t& round);

  /// Phases of chunks that this rank is through with: grows whenever advance() moves something on.
  std::uint64_t phases_done() const { return packed_ + combined_ + collected_; }
  /// Whether the budget of this round is spent: there may be more to do.
  bool spent() const { return budget_.spent(); }

  /// No job is touched any more, and peers give up what needs this rank.
  void abandon() noexcept;

 private:
  using Phase = ShmBoard::Phase;

  bool make_transfers();
  bool make_room(std::size_t bytes);
  bool readers_reached(const ShmFlow& flow, std::uint64_t chunk);
  bool all_combined(std::uint64_t chunk);
  template <class Condition>
  bool every_peer(Condition condition) const {
    for (int rank = 0; rank < board_.ranks(); ++rank) {
      if (rank != board_.rank() && !condition(rank)) return false;
    }
    return true;
  }
  bool begin(ShmJob& job);
  void decide(ShmJob& job);
  void compare_tokens();
  bool pack_next();
  bool combine_next();
  bool collect_next();
  void be_heard(bool reads, bool hot, std::optional<std::uint64_t> next_job);
  bool next_phase();
  StorePolicy& shows_of(std::size_t bytes) { return bytes < StorePolicy::large ? small_shows_ : shows_; }
  StorePolicy& results_of(const ShmJob& job) { return (job.pushes ? pushed_results_ : results_)[job.large ? 1 : 0]; }
  ShmTransfer& transfer(std::uint64_t chunk) { return transfers_[chunk & (transfers_.size() - 1)]; }

  ShmBoard board_;
  ShmGrowth growth_;
  ShmAccess access_;
  StorePolicy shows_, small_shows_{StorePolicy::of_small};
  // Of small jobs, and of large ones, which are out of the cache whatever the others do there.
  std::array<StorePolicy, 2> results_, pushed_results_;
  std::vector<ShmTransfer> transfers_;
  std::deque<ShmJob*> jobs_;           // with chunks that have not been packed
  std::vector<std::uint64_t> tokens_;  // of jobs that have begun, and that not all others have begun with the same
  std::uint64_t jobs_compared_ = 0;
  std::uint64_t free_ = 0;  // chunks below have been collected by all ranks
  std::uint64_t packed_ = 0;
  std::uint64_t combined_ = 0;
  std::uint64_t collected_ = 0;
  std::uint64_t some_places_ = 1;  // hot ones, a quarter of all
  bool unheard_ = false;           // this rank has collected something that peers have not heard of
  StepBudget budget_;              // of chunks' bytes, counted in each phase
  Phase phase_ = Phase::packed;    // whose turn it is: a round may end between any two
  bool abandoned_ = false;
};

}  // namespace kolo
