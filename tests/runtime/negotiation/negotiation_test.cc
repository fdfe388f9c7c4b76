// Negotiation alone: random programs, random message timing, no threads. Replay a failure with KOLO_TEST_SEED=<seed>.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/runtime/negotiation/negotiation_simulation.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

using testing::Action;
using testing::nodes_of;
using testing::seeds;
using testing::Simulation;
using testing::sum_of;
using What = Action::What;

/// A program of several steps over some names, on all ranks: names missing or reshaped in some steps, shuffled or
/// common orders, early waits, polls, withdrawals, and mismatches on purpose.
class RandomProgram {
 public:
  RandomProgram(Simulation& simulation, std::uint64_t seed) : simulation_(simulation), random_(seed) {}

  void write() {
    const int names = draw(1, 12);
    for (int i = 0; i < names; ++i) names_.push_back("t" + std::to_string(i));
    for (int step = draw(1, 6); step > 0; --step) write_step();
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }

  void write_step() {
    std::vector<Action> ops;
    for (const auto& name : names_) {
      if (chance(10)) continue;
      ops.push_back({What::submit, name, sum_of(chance(10) ? 7 : 5)});
    }
    std::string withdrawn;
    int withdrawing_rank = draw(0, simulation_.size() - 1);
    if (!ops.empty() && chance(30))
      withdrawn = ops[static_cast<std::size_t>(draw(0, static_cast<int>(ops.size()) - 1))].name;
    const bool common_order = chance(50);
    const int odd_rank = draw(0, simulation_.size() - 1);
    const bool mismatch = simulation_.size() > 1 && !ops.empty() && chance(30);
    const auto odd_op = ops.empty() ? 0 : static_cast<std::size_t>(draw(0, static_cast<int>(ops.size()) - 1));
    Signature odd_signature = sum_of(5, DType::f64);  // never agreed on, so always announced in full
    if (mismatch && chance(60)) odd_signature = sum_of(ops[odd_op].signature.shape[0] == 5 ? 7 : 5);  // may be known
    std::vector<bool> early_wait(ops.size());
    for (auto&& early : early_wait) early = chance(15);
    for (int rank = 0; rank < simulation_.size(); ++rank) {
      auto mine = ops;
      if (mismatch && rank == odd_rank) mine[odd_op].signature = odd_signature;
      std::vector<std::size_t> order(mine.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      if (!common_order) std::shuffle(order.begin(), order.end(), random_);
      std::vector<std::string> open;
      for (std::size_t i : order) {
        simulation_.add(rank, mine[i]);
        open.push_back(mine[i].name);
        if (chance(10)) simulation_.add(rank, {What::poll, mine[i].name, {}});
        if (mine[i].name == withdrawn && rank == withdrawing_rank && !(mismatch && i == odd_op)) {
          simulation_.add(rank, {What::withdraw_and_resubmit, mine[i].name, mine[i].signature});
        }
        // A wait in the middle is safe where all ranks submit in one order, and on some ranks only, too.
        if (common_order && early_wait[i] && chance(70)) {
          simulation_.add(rank, {What::wait, mine[i].name, {}});
          open.pop_back();
        }
      }
      std::shuffle(open.begin(), open.end(), random_);
      for (const auto& name : open) simulation_.add(rank, {What::wait, name, {}});
    }
  }

  Simulation& simulation_;
  std::mt19937_64 random_;
  std::vector<std::string> names_;
};

TEST(Negotiation, RandomProgramsRunAlikeOnEveryRank) {
  const std::vector<std::vector<int>> placements{
      {1}, {2}, {3}, {4}, {1, 1}, {2, 2}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1, 1, 1, 2}};
  for (std::uint64_t seed : seeds(6000)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(nodes_of(placements[seed % placements.size()]), seed % 3 == 0 ? 64 : 1 << 20, seed);
    simulation.ends_runs_early = seed % 2 == 0;
    RandomProgram(simulation, seed).write();
    ASSERT_TRUE(simulation.run()) << simulation.stuck();
    for (int rank = 1; rank < simulation.size(); ++rank) {
      ASSERT_TRUE(simulation.outcomes(rank) == simulation.outcomes(0)) << "rank " << rank;
      ASSERT_TRUE(simulation.buckets(rank) == simulation.buckets(0)) << "rank " << rank;
    }
  }
}

/// Submits `tensors` tensors and waits for all of them, or for the last ones, on every rank.
void add_step(Simulation& simulation, int tensors, int first_awaited = 0) {
  for (int i = 0; i < tensors; ++i) simulation.add_everywhere({What::submit, "g" + std::to_string(i), sum_of(1000)});
  for (int i = first_awaited; i < tensors; ++i) simulation.add_everywhere({What::wait, "g" + std::to_string(i), {}});
}

TEST(Negotiation, SteadyStateCostsOneAgreementAndFewBytesPerBucket) {
  for (int ranks : {2, 3, 4}) {
    const int tensors = 200, steps = 10;
    Simulation simulation(nodes_of({ranks}), 100 * 4000, 1);  // 100 tensors a bucket: 2 buckets
    add_step(simulation, tensors);
    add_step(simulation, tensors);
    ASSERT_TRUE(simulation.run());
    simulation.reset_counts();
    const auto agreements_before = simulation.negotiator(0).agreements();
    const auto announced_before = simulation.negotiator(1).full_announcements();
    for (int step = 0; step < steps; ++step) add_step(simulation, tensors);
    ASSERT_TRUE(simulation.run());
    EXPECT_EQ(simulation.negotiator(0).agreements() - agreements_before, 2u * steps);
    EXPECT_EQ(simulation.negotiator(1).full_announcements(), announced_before) << "no names after the first step";
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < ranks; ++rank) bytes += simulation.bytes(rank);
    EXPECT_LE(bytes, 64u * 2 * steps * static_cast<unsigned>(ranks));
  }
}

TEST(Negotiation, MessagesPerLeaderDoNotGrowWithTheTree) {
  std::vector<std::uint64_t> bytes_per_message;
  for (int nodes : {4, 64}) {
    const int tensors = 1000, steps = 1;  // in one bucket: who waits for the last waits for all
    Simulation simulation(nodes_of(std::vector<int>(static_cast<std::size_t>(nodes), 4)), std::int64_t{1} << 40, 1);
    add_step(simulation, tensors, tensors - 1);
    add_step(simulation, tensors, tensors - 1);
    ASSERT_TRUE(simulation.run());
    simulation.reset_counts();
    for (int step = 0; step < steps; ++step) add_step(simulation, tensors, tensors - 1);
    ASSERT_TRUE(simulation.run());
    std::uint64_t messages = 0, bytes = 0;
    for (int rank = 0; rank < simulation.size(); ++rank) {
      const auto children = tree_position(nodes_of(std::vector<int>(static_cast<std::size_t>(nodes), 4)),
                                          simulation.negotiator(rank).group().ranks, rank)
                                .children;
      EXPECT_LE(simulation.messages(rank), (children.size() + 1) * steps)
          << "one up, one down to each child, per agreement";
      const auto far = std::ranges::count_if(children, [&](int child) { return child / 4 != rank / 4; });
      EXPECT_LE(far, TreePosition::tree_fan_out) << "and to few of other nodes";
      messages += simulation.messages(rank);
      bytes += simulation.bytes(rank);
    }
    bytes_per_message.push_back(bytes / messages);
  }
  EXPECT_EQ(bytes_per_message[0], bytes_per_message[1]);
}

TEST(Negotiation, AWaitInTheMiddleCutsTheBucketOnceAndForAll) {
  Simulation simulation(nodes_of({2}), 1 << 20, 1);
  const auto step = [&](bool wait_early) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const char* name : {"a", "b", "c", "d"}) {
        simulation.add(rank, {What::submit, name, sum_of(5)});
        if (wait_early && rank == 1 && name == std::string("b")) simulation.add(rank, {What::wait, "a", {}});
      }
      for (const char* name : {"a", "b", "c", "d"}) simulation.add(rank, {What::wait, name, {}});
    }
  };
  step(false);
  step(false);
  ASSERT_TRUE(simulation.run());
  EXPECT_EQ(simulation.buckets(0).back(), (std::vector<std::string>{"a", "b", "c", "d"}));
  step(true);
  ASSERT_TRUE(simulation.run());
  const auto count = simulation.buckets(0).size();
  EXPECT_EQ(simulation.buckets(0)[count - 2], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(simulation.buckets(0)[count - 1], (std::vector<std::string>{"c", "d"}));
}

TEST(Negotiation, WithoutWaitingAMemberOfAnIncompleteBucketStaysBack) {
  Simulation simulation(nodes_of({2}), 1 << 20, 1);
  add_step(simulation, 3);
  add_step(simulation, 3);
  ASSERT_TRUE(simulation.run());
  const auto before = simulation.buckets(0).size();
  simulation.add_everywhere({What::submit, "g0", sum_of(1000)});
  ASSERT_TRUE(simulation.run());
  EXPECT_EQ(simulation.buckets(0).size(), before);
  simulation.add_everywhere({What::poll, "g0", {}});
  ASSERT_TRUE(simulation.run());
  ASSERT_EQ(simulation.buckets(0).size(), before + 1);
  EXPECT_EQ(simulation.buckets(1).back(), std::vector<std::string>{"g0"});
}

}  // namespace
}  // namespace kolo
