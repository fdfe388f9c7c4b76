#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <kolo/backend.h>

#include "ops/shm/choice.h"
#include "ops/shm/memory.h"

namespace kolo {

/// In memory that two ranks share, for what one of them (the owner) shows the other (the reader).
///
/// Ranks as threads: the owner counts a withdrawal first, and then waits until the reader is not inside a copy; the
/// reader goes inside first and looks at the count second. All is sequentially consistent, so one of the two sees the
/// other. Processes: nobody waits, since the other one may be stopped; the reader looks at the count again when it has
/// copied, and trusts nothing that was copied after a withdrawal.
struct Showing {
  alignas(64) std::atomic<std::uint64_t> withdrawn;
  alignas(64) std::atomic<std::uint32_t> inside;
  std::atomic<std::uint32_t> refused;  ///< the reader cannot copy what it was shown; until the owner has seen it
};

/// How the ranks of a node copy out of each other's memory: threads from anywhere, processes out of ShmMemory, which
/// they map, or have the system copy it.
class Reach final {
 public:
  /// Ranks as threads.
  Reach() = default;
  /// Processes. `memory`: of this rank, in which ranks count as among those that share the rings; null: nothing can be
  /// shown.
  explicit Reach(std::shared_ptr<ShmMemory> memory) : threads_(false), memory_(std::move(memory)) {}

  /// What others can try: what lies where they cannot read it they refuse.
  ShmReach reach_of(std::span<const std::byte> bytes) const;
  /// Of bytes that can be reached.
  LaneAddress address_of(std::span<const std::byte> bytes) const;
  /// From rank `from`; as of ByteLane.
  ByteLane::Fetched fetch(int from, Showing& showing, const LaneAddress& address, std::size_t offset,
                          std::span<std::byte> to, std::uint64_t heard) const;
  void withdraw(Showing& showing) const noexcept;

 private:
  bool copy(int from, const LaneAddress& address, std::size_t offset, std::span<std::byte> to) const;

  const bool threads_ = true;
  const std::shared_ptr<ShmMemory> memory_;
};

}  // namespace kolo
