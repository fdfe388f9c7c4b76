#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"

namespace kolo {

/// What the ranks of a local group share: each rank's bucket, and its progress.
///
/// Operation number k (the k-th that a rank starts; the same on all ranks) uses slot k % slots. A slot counts its
/// arrivals and departures for ever, so nothing is reset: operation k may be shown once all ranks have left operation k
/// - slots, all have shown it when `arrived` reaches (k / slots + 1) * ranks, and all have finished when `left` does.
/// Between those two, and only then, every rank may read all buckets shown there.
///
/// Leaving early. A bucket may die before its operation is complete. Its owner first sets `broken`, then waits until no
/// rank is `inside` a copy; a rank that goes inside sets that flag first and looks at `broken` second. All four are
/// sequentially consistent, so one of the two sees the other: no rank is inside a copy once break_up() has returned.
class LocalBoard final {
 public:
  /// `doorbells` are rung when a rank has moved on: one per rank, or none if all poll.
  LocalBoard(int ranks, std::vector<Doorbell*> doorbells);

  int ranks() const { return ranks_; }

  /// Shows this rank's bucket for an operation; false if its slot is still in use. `bucket` lives until all_left() or
  /// break_up().
  bool show(std::uint64_t operation, int rank, const Bucket& bucket);
  bool all_shown(std::uint64_t operation) const { return slot(operation).arrived.load() >= target(operation); }

  /// The bucket that `rank` shows; only inside, between all_shown() and leave().
  const Bucket& shown(std::uint64_t operation, int rank) const {
    return *slot(operation).shown[static_cast<std::size_t>(rank)].bucket;
  }
  /// The token of that bucket; between all_shown() and leave(), also where the bucket may have died.
  std::uint64_t token(std::uint64_t operation, int rank) const {
    return slot(operation).shown[static_cast<std::size_t>(rank)].token;
  }

  /// This rank will not touch the operation's buckets any more.
  void leave(std::uint64_t operation);
  bool all_left(std::uint64_t operation) const { return slot(operation).left.load() >= target(operation); }

  /// Brackets a copy by `rank`. enter() returns false, and the rank is not inside, if the board is broken.
  bool enter(int rank);
  void exit(int rank) { inside_[static_cast<std::size_t>(rank)].flag.store(false); }

  /// Ends all cooperation: returns once no rank is, or ever will be, inside a copy. Wakes all ranks.
  void break_up() noexcept;
  bool broken() const { return broken_.load(); }

 private:
  static constexpr std::uint64_t slots = 64;

  struct Shown {
    const Bucket* bucket;
    std::uint64_t token;
  };
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> arrived{0};
    alignas(64) std::atomic<std::uint64_t> left{0};
    std::vector<Shown> shown;  // one per rank
  };
  struct alignas(64) Inside {
    std::atomic<bool> flag{false};
  };

  Slot& slot(std::uint64_t operation) { return slots_[operation % slots]; }
  const Slot& slot(std::uint64_t operation) const { return slots_[operation % slots]; }
  std::uint64_t target(std::uint64_t operation) const {
    return (operation / slots + 1) * static_cast<std::uint64_t>(ranks_);
  }
  void ring_all();

  int ranks_;
  std::vector<Doorbell*> doorbells_;
  std::array<Slot, slots> slots_;
  std::vector<Inside> inside_;  // one per rank
  std::atomic<bool> broken_{false};
};

}  // namespace kolo
