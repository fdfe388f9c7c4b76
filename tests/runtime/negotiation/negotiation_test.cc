// Negotiation alone: random programs, random message timing, no threads. Replay a failure with KOLO_TEST_SEED=<seed>.

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <malloc.h>

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
using testing::sum_on_gpu;
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
  /// One that mostly repeats itself.
  void write_training() {
    write();
    for (int step = draw(10, 80); step > 0; --step) {
      for (const auto& name : names_) simulation_.add_everywhere({What::submit, name, sum_of(5)});
      for (const auto& name : names_) simulation_.add_everywhere({What::wait, name, {}});
      if (chance(4)) write_step();
    }
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
    const bool fails = mismatch && chance(40);
    if (fails && chance(60)) odd_signature = ops[odd_op].signature;
    std::vector<bool> early_wait(ops.size());
    for (auto&& early : early_wait) early = chance(15);
    for (int rank = 0; rank < simulation_.size(); ++rank) {
      auto mine = ops;
      if (mismatch && rank == odd_rank) mine[odd_op] = {What::submit, ops[odd_op].name, odd_signature, fails};
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
    const std::size_t room = seed % 5 < 2 ? 1 + seed % 7 : 8192;  // with little, tensors are forgotten again and again
    Simulation simulation(nodes_of(placements[seed % placements.size()]), seed % 3 == 0 ? 64 : 1 << 20, seed, room);
    simulation.ends_runs_early = seed % 2 == 0;
    RandomProgram(simulation, seed).write();
    ASSERT_TRUE(simulation.run()) << simulation.stuck();
    for (int rank = 1; rank < simulation.size(); ++rank) {
      ASSERT_TRUE(simulation.outcomes(rank) == simulation.outcomes(0)) << "rank " << rank;
      ASSERT_TRUE(simulation.buckets(rank) == simulation.buckets(0)) << "rank " << rank;
    }
  }
}

/// Changes of the threshold between steps and in the middle of what is late, withdrawn, cut, rejected and forgotten.
TEST(Negotiation, RandomProgramsRunAlikeWhileTheThresholdIsTuned) {
  const std::vector<std::vector<int>> placements{{1}, {2}, {3}, {1, 1}, {2, 2}, {1, 2, 1}};
  for (std::uint64_t seed : seeds(1000)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::size_t room = seed % 5 == 0 ? 6 + seed % 7 : 8192;
    Simulation simulation(nodes_of(placements[seed % placements.size()]), seed % 3 == 0 ? 64 : 1280, seed, room, true);
    simulation.ends_runs_early = seed % 2 == 0;
    RandomProgram(simulation, seed).write_training();
    ASSERT_TRUE(simulation.run()) << simulation.stuck();
    for (int rank = 1; rank < simulation.size(); ++rank) {
      ASSERT_TRUE(simulation.outcomes(rank) == simulation.outcomes(0)) << "rank " << rank;
      ASSERT_TRUE(simulation.buckets(rank) == simulation.buckets(0)) << "rank " << rank;
    }
  }
}

/// A message that no negotiator wrote is an error, or does something else, but nothing outside of what there is.
TEST(Negotiation, MessagesThatNobodyWroteDoNoHarm) {
  int programs = 0, refused = 0;
  for (std::uint64_t seed : seeds(4000)) {
    ++programs;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<std::vector<int>> placements{{2}, {3}, {1, 1}, {2, 2}, {1, 2, 1}};
    Simulation simulation(nodes_of(placements[seed % placements.size()]), seed % 3 == 0 ? 64 : 1 << 20, seed,
                          seed % 5 < 2 ? 1 + seed % 7 : 8192);
    RandomProgram(simulation, seed).write();
    std::mt19937_64 random(seed);
    int left = static_cast<int>(random() % 60), delivered = 0;
    simulation.tamper = [&](std::vector<std::byte>& bytes) {
      if (++delivered > 3000) throw Error(ErrorCode::closed, "enough");
      if (bytes.empty() || left-- > 0) return;
      left = static_cast<int>(random() % 30);
      std::byte& one = bytes[random() % bytes.size()];
      switch (random() % 4) {
        case 0: one ^= static_cast<std::byte>(1U << (random() % 8)); break;
        case 1: one = static_cast<std::byte>(random()); break;
        case 2: bytes.resize(random() % bytes.size()); break;
        default: one = static_cast<std::byte>(static_cast<unsigned>(one) + 1); break;
      }
    };
    try {
      (void)simulation.run();
    } catch (const Error&) {
      ++refused;
    }
  }
  std::printf("%d of %d programs ended with an error\n", refused, programs);
  EXPECT_GT(refused, programs / 4) << "most messages are changed for the worse";
}

/// Programs with tensors on devices, some on hosts, in one order or in others, in steps that differ; each rank waits
/// where it likes, also for what it has submitted some steps before.
class DeviceProgram {
 public:
  explicit DeviceProgram(std::uint64_t seed) : random_(seed) {}

  void write(Simulation& simulation) {
    const int names = draw(2, 9), steps = draw(3, 24);
    std::vector<std::vector<std::string>> open(static_cast<std::size_t>(simulation.size()));
    const bool lags = chance(30), waits_alike = chance(30);
    for (int step = 0; step < steps; ++step) {
      std::vector<Action> ops;
      for (int i = 0; i < names; ++i) {
        const auto name = "t" + std::to_string(i);
        if (chance(12)) continue;
        ops.push_back({What::submit, name, i % 5 == 4 ? sum_of(5) : sum_on_gpu(5)});
      }
      const bool common_order = chance(70);
      std::vector<bool> early(ops.size());
      for (auto&& wait : early) wait = chance(15);
      for (int rank = 0; rank < simulation.size(); ++rank) {
        auto& mine = open[static_cast<std::size_t>(rank)];
        auto order = ops;
        if (!common_order) std::shuffle(order.begin(), order.end(), random_);
        if (!common_order) wait_for_all(simulation, rank, mine, 100);
        for (std::size_t i = 0; i < order.size(); ++i) {
          const auto before = std::ranges::find(mine, order[i].name);
          if (before != mine.end()) {
            simulation.add(rank, {What::wait, *before, {}});
            mine.erase(before);
          }
          simulation.add(rank, order[i]);
          mine.push_back(order[i].name);
          if (common_order && (waits_alike ? bool(early[i]) : chance(10))) wait_for_one(simulation, rank, mine);
        }
        wait_for_all(simulation, rank, mine, lags && common_order ? 60 : 100);
      }
    }
    for (int rank = 0; rank < simulation.size(); ++rank)
      wait_for_all(simulation, rank, open[static_cast<std::size_t>(rank)], 100);
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }

  void wait_for_one(Simulation& simulation, int rank, std::vector<std::string>& open) {
    const auto place = open.begin() + draw(0, static_cast<int>(open.size()) - 1);
    simulation.add(rank, {What::wait, *place, {}});
    open.erase(place);
  }
  void wait_for_all(Simulation& simulation, int rank, std::vector<std::string>& open, int percent) {
    std::erase_if(open, [&](const std::string& name) {
      if (!chance(percent)) return false;
      simulation.add(rank, {What::wait, name, {}});
      return true;
    });
  }

  std::mt19937_64 random_;
};

/// By name: with which others it ran, each time.
using Layouts = std::map<std::string, std::vector<std::string>>;
Layouts layouts_of(const Simulation& simulation) {
  Layouts layouts;
  for (const auto& bucket : simulation.buckets(0)) {
    for (const auto& name : bucket) layouts[name].push_back(fmt::format("{}", fmt::join(bucket, " ")));
  }
  for (int i = 4; i < 10; i += 5) layouts.erase("t" + std::to_string(i));  // on hosts
  return layouts;
}

/// No timer is needed either: the runs of the host's tensors end, when nothing else can happen or at any time.
TEST(Negotiation, BucketsOfDevicesAreTheSameWhateverComesFirst) {
  const std::vector<std::vector<int>> placements{{2}, {3}, {1, 1}, {2, 2}, {1, 2, 1}};
  std::size_t fused = 0, alone = 0;
  for (std::uint64_t seed : seeds(2000)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::optional<Layouts> expected;
    for (std::uint64_t schedule = 0; schedule < 4; ++schedule) {
      Simulation simulation(nodes_of(placements[seed % placements.size()]), seed % 3 == 0 ? 40 : 1 << 20,
                            seed * 10 + schedule);
      simulation.ends_runs_early = schedule % 2 == 1;
      DeviceProgram(seed).write(simulation);
      ASSERT_TRUE(simulation.run()) << simulation.stuck();
      const Layouts found = layouts_of(simulation);
      if (!expected) expected = found;
      ASSERT_EQ(found, *expected) << "schedule " << schedule;
    }
    for (const auto& [name, buckets] : *expected) {
      for (const auto& bucket : buckets) ++(bucket == name ? alone : fused);
    }
  }
  std::printf("%zu tensors ran fused, %zu alone\n", fused, alone);
  EXPECT_GT(fused, alone / 2) << "tensors are fused where programs allow it";
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

/// Ranks on each of as many nodes.
class LargeTree : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LargeTree, ::testing::Values(4, 32, 256),
                         [](const auto& info) { return std::to_string(info.param * info.param); });

/// What the steady state costs: figures for bench/RESULTS.md, held to what the tree's fan-out allows.
TEST_P(LargeTree, CostsWhatItsFanOutDoes) {
  const int nodes = GetParam(), tensors = 20, steps = 3;
  const auto heap = [] {
    const auto info = mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
  };
  const double heap_before = heap();
  Simulation simulation(nodes_of(std::vector<int>(static_cast<std::size_t>(nodes), nodes)), std::int64_t{1} << 40, 1);
  for (int step = 0; step < 2; ++step) {  // the second is planned
    add_step(simulation, tensors);
    ASSERT_TRUE(simulation.run_in_rounds());
  }
  const double heap_of_rank = (heap() - heap_before) / simulation.size();
  simulation.reset_counts();
  for (int step = 0; step < steps; ++step) add_step(simulation, tensors);
  const auto rounds = simulation.run_in_rounds();
  ASSERT_TRUE(rounds);
  std::uint64_t messages = 0, bytes = 0, most_messages = 0, most_bytes = 0;
  for (int rank = 0; rank < simulation.size(); ++rank) {
    messages += simulation.messages(rank);
    bytes += simulation.bytes(rank);
    most_messages = std::max(most_messages, simulation.messages(rank));
    most_bytes = std::max(most_bytes, simulation.bytes(rank));
  }
  int levels = 1;  // of edges: from a rank to its leader, and from there up to the root
  for (int node = nodes - 1; node > 0; node = (node - 1) / TreePosition::tree_fan_out) ++levels;
  const auto edges = static_cast<std::uint64_t>(simulation.size() - 1);
  std::printf(
      "%d ranks, a step: %.2f messages and %.1f bytes per edge, at most %.1f messages and %.0f bytes of one rank; %.1f "
      "hops to an agreement; %.1f KB per rank\n",
      simulation.size(), static_cast<double>(messages) / static_cast<double>(edges * steps),
      static_cast<double>(bytes) / static_cast<double>(edges * steps), static_cast<double>(most_messages) / steps,
      static_cast<double>(most_bytes) / steps, static_cast<double>(*rounds) / steps, heap_of_rank / 1e3);
  EXPECT_LE(messages, 2 * edges * steps) << "one up and one down";
  EXPECT_LE(most_messages, static_cast<std::uint64_t>((nodes + TreePosition::tree_fan_out) * steps));
  EXPECT_LE(bytes, 64 * messages);
  EXPECT_LE(*rounds, (2 * levels + 1) * steps) << "up the tree and down, and one in which the programs go on";
  EXPECT_LE(heap_of_rank, 100e3) << "with what the simulation keeps";
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

TEST(Negotiation, TuningCutsNoBucketAndEnds) {
  for (const std::uint64_t seed : seeds(200)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int tensors = 16, steps = 60;
    Simulation simulation(nodes_of(seed % 2 == 0 ? std::vector{3} : std::vector{2, 1}), tensors * 4000, seed, 8192,
                          true);
    for (int step = 0; step < steps; ++step) add_step(simulation, tensors);
    ASSERT_TRUE(simulation.run());
    std::set<std::size_t> sizes;
    std::vector<std::size_t> buckets_of_step{0};
    int left = tensors;
    for (const auto& bucket : simulation.buckets(0)) {
      sizes.insert(bucket.size());
      ++buckets_of_step.back();
      left -= static_cast<int>(bucket.size());
      ASSERT_GE(left, 0) << "a bucket of two steps";
      if (left > 0) continue;
      left = tensors;
      buckets_of_step.push_back(0);
    }
    EXPECT_EQ(sizes, (std::set<std::size_t>{1, 4, 16})) << "buckets of 16, 4 and 1 tensors, and no parts of them";
    const auto last = buckets_of_step.begin() + 50;
    EXPECT_TRUE(std::all_of(last, last + 10, [&](std::size_t count) { return count == *last; })) << "it has settled";
    EXPECT_EQ(simulation.buckets(1), simulation.buckets(0));
  }
}

}  // namespace
}  // namespace kolo
