// What a group of a few small operations takes, and how it comes to more.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/host/region.h"
#include "ops/shm/backend.h"
#include "tests/ops/backend_conformance.h"

namespace kolo {
namespace {

const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

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

/// A group of three ranks in one thread.
struct SmallGroup {
  explicit SmallGroup(MemoryForSmallGroups::Lacks of_second) {
    using Lacks = MemoryForSmallGroups::Lacks;
    std::vector<Introduction> members;
    for (int rank = 0; rank < 3; ++rank) {
      memory.push_back(std::make_shared<MemoryForSmallGroups>(rank == 1 ? of_second : Lacks::nothing));
      const auto report = [this, rank](const std::string& line) { lines.push_back(fmt::format("{}: {}", rank, line)); };
      const GroupInfo group{7, "7 (ranks 0-2)", {0, 1, 2}, rank};
      worlds.push_back(shm_backend({memory.back(), {}, {}, {}, report}, group));
      backends.push_back(worlds.back()->for_group(group));
      members.push_back(backends.back()->introduction());
    }
    for (const auto& backend : backends) EXPECT_TRUE(backend->introduce(members));
  }
  void reduce(std::int64_t elements) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int rank = 0; rank < 3; ++rank) {
      jobs.push_back(std::make_unique<Job>(Call{sum_f32, {elements, 2}, true, calls++ / 3}, rank, 3));
      jobs.back()->start(*backends[static_cast<std::size_t>(rank)]);
    }
    for (int left = 3, turns = 0; left > 0; ++turns) {
      ASSERT_LT(turns, 1'000'000);
      left = 0;
      for (const auto& job : jobs) left += job->step() ? 0 : 1;
    }
    for (const auto& job : jobs) job->verify();
  }
  std::int64_t pieces(int rank) const { return memory[static_cast<std::size_t>(rank)]->pieces; }

  std::vector<std::string> lines;
  std::vector<std::shared_ptr<MemoryForSmallGroups>> memory;
  std::vector<std::unique_ptr<Backend>> worlds, backends;
  std::uint64_t calls = 0;
};

TEST(ShmBackend, AGroupTakesMemoryForLargeChunksWhenItNeedsThem) {
  SmallGroup group(MemoryForSmallGroups::Lacks::nothing);
  for (int i = 0; i < 100; ++i) group.reduce(1);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group.pieces(rank), 1);
  for (int i = 0; i < 5; ++i) group.reduce(100'000);
  for (int i = 0; i < 100; ++i) group.reduce(i);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group.pieces(rank), 2);
  EXPECT_EQ(group.lines, std::vector<std::string>{});
}

TEST(ShmBackend, WhereOneRankGetsNoMoreMemoryAllGoOnInSmallChunks) {
  SmallGroup group(MemoryForSmallGroups::Lacks::memory);
  for (const std::int64_t elements : {1, 10'000, 1, 20'000}) group.reduce(elements);
  EXPECT_EQ(group.lines,
            std::vector<std::string>{"1: no more shared memory for group 7 (ranks 0-2): memory is short; its large "
                                     "tensors travel in small pieces, which is slow"});
}

TEST(ShmBackend, WhereOneRankCannotMapTheOthersMemoryAllGoOnInSmallChunks) {
  SmallGroup group(MemoryForSmallGroups::Lacks::mappings);
  for (const std::int64_t elements : {1, 10'000, 1, 20'000}) group.reduce(elements);
  EXPECT_EQ(group.lines,
            std::vector<std::string>{"1: no more shared memory for group 7 (ranks 0-2): there is no room; its large "
                                     "tensors travel in small pieces, which is slow"});
}

TEST(ShmBackend, PartsOfManyGroupsShareFewPieces) {
  const auto memory = std::make_shared<MemoryForSmallGroups>(MemoryForSmallGroups::Lacks::nothing);
  std::vector<std::shared_ptr<std::byte>> parts;
  std::vector<std::byte*> places;
  for (int i = 0; i < 1000; ++i) {
    parts.push_back(memory->reserve_part(4000));
    places.push_back(parts.back().get());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(places.back()) % 128, 0U);
    EXPECT_EQ(std::count(places.back(), places.back() + 4000, std::byte{0}), 4000);
    std::memset(places.back(), 1, 4000);
  }
  EXPECT_LE(memory->pieces, 17);
  EXPECT_EQ(memory->released(), 0U);
  parts.clear();
  EXPECT_EQ(static_cast<std::int64_t>(memory->released()), memory->pieces);
}

}  // namespace
}  // namespace kolo
