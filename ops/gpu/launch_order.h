#pragma once

#include <cstdint>
#include <list>
#include <utility>

#include <kolo/group.h>

namespace kolo {

/// In which order one rank launches what its groups run on a device. Kernels of collectives occupy the device until all
/// ranks run them: two ranks that launch those of two groups in different orders wait for each other for ever.
///
/// Every bucket gets a time, which its members agree on: each proposes one that is later than all it knows, the latest
/// proposal counts (Skeen's algorithm; Birman & Joseph 1987, doi:10.1145/7351.7478). A rank launches what has the
/// earliest time, once nothing whose time is still open can come before. So all ranks that two buckets share launch
/// them in one order; and a bucket waits only for others that are ready everywhere. One object per rank; used by one
/// thread at a time.
class LaunchOrder final {
 public:
  struct Entry {
    std::uint64_t time = 0;
    GroupKey group{};
    bool settled = false;
  };
  using Turn = std::list<Entry>::iterator;

  /// Takes a bucket of `group` on; entry->time is this rank's proposal.
  Turn enter(GroupKey group) { return entries_.insert(entries_.end(), {++clock_, group, false}); }

  /// Its members have agreed.
  void settle(Turn turn, std::uint64_t time) {
    turn->time = time;
    turn->settled = true;
    clock_ = clock_ < time ? time : clock_;
  }

  /// Whether it is the first of all that is here. Two buckets of one group have different times; of different groups
  /// maybe not.
  bool first(Turn turn) const {
    if (!turn->settled) return false;
    for (const auto& other : entries_) {
      if (std::pair(other.time, other.group) < std::pair(turn->time, turn->group)) return false;
    }
    return true;
  }

  /// It is launched, or never will be.
  void leave(Turn turn) { entries_.erase(turn); }

  bool empty() const { return entries_.empty(); }

 private:
  std::uint64_t clock_ = 0;
  std::list<Entry> entries_;
};

}  // namespace kolo
