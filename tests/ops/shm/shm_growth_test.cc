// What a group of a few small operations takes, and how it comes to more.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/ops/backend_conformance.h"
#include "tests/ops/shm/three_ranks.h"

namespace kolo {
namespace {

using testing::MemoryForSmallGroups;

const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

struct SmallGroup : testing::ThreeRanks {
  using ThreeRanks::ThreeRanks;

  void reduce(std::int64_t elements) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int rank = 0; rank < count; ++rank) {
      jobs.push_back(std::make_unique<Job>(Call{sum_f32, {elements, 2}, true, calls++ / count}, rank, count));
      jobs.back()->start(of(rank));
    }
    for (int left = count, turns = 0; left > 0; ++turns) {
      ASSERT_LT(turns, 1'000'000);
      left = 0;
      for (const auto& job : jobs) left += job->step() ? 0 : 1;
    }
    for (const auto& job : jobs) job->verify();
  }
  std::int64_t pieces(int rank) const { return memory[static_cast<std::size_t>(rank)]->pieces; }

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
