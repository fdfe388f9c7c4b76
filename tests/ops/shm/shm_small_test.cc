// Small operations to and from a root, which a rank does at once where it need not wait.

#include <fmt/format.h>

#include <array>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "tests/ops/backend_conformance.h"
#include "tests/ops/shm/three_ranks.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

using testing::MemoryForSmallGroups;
using testing::ThreeRanks;

std::unique_ptr<Job> started(const Call& call, int rank, const ThreeRanks& ranks) {
  auto job = std::make_unique<Job>(call, rank, ThreeRanks::count);
  job->start(ranks.of(rank));
  return job;
}

TEST(SmallOperations, WhoShowsSomethingWaitsForNobody) {
  const ThreeRanks ranks(MemoryForSmallGroups::Lacks::nothing, false);
  for (const OpKind kind : {OpKind::broadcast, OpKind::scatter, OpKind::gather, OpKind::reduce}) {
    const bool from_root = kind == OpKind::broadcast || kind == OpKind::scatter;
    for (int root = 0; root < ThreeRanks::count; ++root) {
      const Call call{.signature = signature_of(kind, DType::f32, ReduceOp::sum, root), .sizes = {7}};
      std::vector<std::unique_ptr<Job>> jobs(ThreeRanks::count);
      const auto start = [&](int rank) -> Job& {
        jobs[static_cast<std::size_t>(rank)] = started(call, rank, ranks);
        return *jobs[static_cast<std::size_t>(rank)];
      };
      const int one = (root + 1) % ThreeRanks::count, other = (root + 2) % ThreeRanks::count;
      if (from_root) {
        EXPECT_TRUE(start(root).step());
        EXPECT_TRUE(start(one).step()) << "what it reads is there";
      } else {
        EXPECT_TRUE(start(one).step());
        EXPECT_FALSE(start(root).step()) << "it reads what is not there";
      }
      EXPECT_TRUE(start(other).step());
      EXPECT_TRUE(jobs[static_cast<std::size_t>(root)]->step());
      for (const auto& job : jobs) job->verify();
    }
  }
}

/// Ranks that are ahead of others or behind, and other operations in between.
void run_random(std::uint64_t seed) {
  const ThreeRanks ranks(MemoryForSmallGroups::Lacks::nothing, false);
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t count) { return static_cast<int>(random() % count); };
  std::vector<Call> calls;
  for (int i = 0; i < 1000; ++i) {
    constexpr std::array kinds{OpKind::broadcast, OpKind::scatter, OpKind::gather, OpKind::reduce};
    constexpr std::array dtypes{DType::f32, DType::u8, DType::f64};
    // For some time one root shows, or is shown, so that ranks come to be far ahead of each other.
    const OpKind kind = below(40) == 0 ? OpKind::all_reduce : kinds[static_cast<std::size_t>(i / 50 % 4)];
    Call call{.signature = signature_of(kind, dtypes[static_cast<std::size_t>(below(3))], ReduceOp::sum, i / 200 % 3),
              .sizes = {below(20) == 0 ? below(4000) : below(40)},
              .in_place = below(2) == 0,
              .seed = random(),
              .width = 1 + below(20)};
    if (below(10) == 0) call.sizes.push_back(below(10));
    call.uneven = has_rows(kind) && below(2) == 0;
    calls.push_back(call);
  }
  struct Rank {
    std::size_t next = 0;
    std::deque<std::unique_ptr<Job>> running;
  };
  std::vector<Rank> all(ThreeRanks::count);
  int at = 0;
  for (std::size_t done = 0, turns = 0; done < all.size() * calls.size(); ++turns) {
    ASSERT_LT(turns, 100'000'000U);
    if (below(100) == 0) at = below(all.size());
    Rank& rank = all[static_cast<std::size_t>(at)];
    if (rank.next < calls.size() && rank.running.size() < 3 && below(2) == 0)
      rank.running.push_back(started(calls[rank.next++], at, ranks));
    while (!rank.running.empty() && rank.running.front()->step()) {
      rank.running.front()->verify();
      rank.running.pop_front();
      ++done;
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

TEST(SmallOperations, AreRightBesideOthers) {
  for (const std::uint64_t seed : testing::seeds(5)) {
    SCOPED_TRACE(fmt::format("KOLO_TEST_SEED={}", seed));
    run_random(seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kolo
