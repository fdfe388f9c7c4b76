#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kolo/group.h>

#include "ops/host/region.h"

namespace kolo {

/// One entry per rank of a node, for the watchdogs of all of them: it can be read when the rank's coordinator, or its
/// whole process, stands still. Lies in a shared region. Each rank writes its own entry only, from its watchdog's
/// thread; any thread reads.
class StatusBoard {
 public:
  static constexpr std::size_t max_waiting = 64;
  static constexpr std::size_t max_text = 64;

  struct Entry {
    std::uint64_t beats = 0;             ///< incremented by the rank's watchdog
    std::vector<std::uint64_t> waiting;  ///< keys of its oldest operations in flight
    std::string last_completed;          ///< name of the operation it completed last; cut to 64 bytes
  };

  /// Bytes of region that a board of `ranks` entries needs.
  static std::size_t bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(Slot); }

  /// A view of the board at `offset` of `region`; `index` is this rank's entry, `ranks` the session ranks of the
  /// entries.
  StatusBoard(std::shared_ptr<Region> region, std::size_t offset, int index, std::vector<int> ranks)
      : region_(std::move(region)), slots_(region_->at<Slot>(offset)), index_(index), ranks_(std::move(ranks)) {}

  /// Identifies an operation across ranks: a hash of its group, its name and its occurrence.
  static std::uint64_t key(GroupKey group, std::string_view name, std::uint64_t occurrence);

  void publish(const Entry& entry);

  /// Session ranks that have an entry here: those of this node.
  const std::vector<int>& ranks() const { return ranks_; }
  /// The entry of a session rank of this node; nothing while it is being written.
  std::optional<Entry> read(int rank) const;

 private:
  struct Slot {  // a sequence lock: version is odd while the owner writes
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint64_t> beats;
    std::atomic<std::uint64_t> waiting_count;
    std::array<std::atomic<std::uint64_t>, max_waiting> waiting;
    std::array<std::atomic<std::uint64_t>, max_text / 8> last_completed;
  };

  std::shared_ptr<Region> region_;
  Slot* slots_;
  int index_;
  std::vector<int> ranks_;
};

}  // namespace kolo
