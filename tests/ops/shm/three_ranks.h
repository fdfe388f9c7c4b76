#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/host/region.h"
#include "ops/shm/backend.h"
#include "tests/ops/backend_conformance.h"

namespace kolo::testing {

/// Memory of ranks in threads, of which one rank gets no more than a small piece, or cannot map another's large one.
class MemoryForSmallGroups final : public ShmMemory {
 public:
  enum class Lacks { nothing, memory, mappings };

  explicit MemoryForSmallGroups(Lacks lacks) : lacks_(lacks) {}
  std::shared_ptr<std::byte> map(int, const PeerAddress& address) override {
    if (lacks_ == Lacks::mappings && address.piece_bytes > few) throw Error(ErrorCode::backend, "there is no room");
    auto* const data = reinterpret_cast<std::byte*>(address.piece) + address.offset;
    return {std::shared_ptr<void>(), data};  // the pieces outlive the backends
  }
  std::int64_t pieces = 0;

 private:
  static constexpr std::size_t few = 256 << 10;

  Piece make_piece(std::size_t bytes, std::uint64_t) override {
    if (lacks_ == Lacks::memory && bytes > few) throw Error(ErrorCode::backend, "memory is short");
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    regions_.push_back(std::move(region));
    ++pieces;
    return {{std::shared_ptr<void>(), data}, reinterpret_cast<std::uintptr_t>(data), bytes};
  }
  Piece adopt_piece(std::byte*, std::size_t, std::uint64_t) override { return {}; }
  Lacks lacks_;
  std::vector<std::shared_ptr<Region>> regions_;
};

/// Three ranks in one thread: all there are, or a group of them.
struct ThreeRanks {
  static constexpr int count = 3;

  explicit ThreeRanks(MemoryForSmallGroups::Lacks of_second, bool group = true) {
    using Lacks = MemoryForSmallGroups::Lacks;
    std::vector<Introduction> members;
    for (int rank = 0; rank < count; ++rank) {
      memory.push_back(std::make_shared<MemoryForSmallGroups>(rank == 1 ? of_second : Lacks::nothing));
      const auto report = [this, rank](const std::string& line) { lines.push_back(fmt::format("{}: {}", rank, line)); };
      const GroupInfo info{7, "7 (ranks 0-2)", {0, 1, 2}, rank};
      worlds.push_back(shm_backend({memory.back(), {}, {}, {}, report}, info));
      backends.push_back(group ? worlds.back()->for_group(info) : std::move(worlds.back()));
      members.push_back(backends.back()->introduction());
    }
    for (const auto& backend : backends) EXPECT_TRUE(backend->introduce(members));
  }
  Backend& of(int rank) const { return *backends[static_cast<std::size_t>(rank)]; }

  std::vector<std::string> lines;
  std::vector<std::shared_ptr<MemoryForSmallGroups>> memory;
  std::vector<std::unique_ptr<Backend>> worlds, backends;
};

}  // namespace kolo::testing
