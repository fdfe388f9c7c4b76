#include "ops/shm/backend.h"

#include <array>
#include <atomic>
#include <numeric>

#include "tests/ops/shm/shm_harness.h"

namespace kolo {
namespace {

HarnessFactory threads(int ranks, const std::string& name, const ShmTuning& tuning, int schedules,
                       bool uses_memory = false) {
  return {fmt::format("{}ranks{}", ranks, name),
          [=] { return std::make_unique<ShmThreads>(ranks, tuning, uses_memory); }, schedules, 1};
}

std::vector<HarnessFactory> harnesses() {
  if (sanitized)
    return {threads(2, "", {}, 4), threads(3, "_small", small_memory, 4), threads(3, "_direct", small_memory, 4, true)};
  std::vector<HarnessFactory> factories;
  for (const int ranks : {1, 2, 3, 4, 5}) factories.push_back(threads(ranks, "", {}, 4));
  for (const int ranks : {2, 3}) {
    factories.push_back(threads(ranks, "_tiny", tiny_memory, 4));
    factories.back().shrinks = 10;
  }
  for (const int ranks : {2, 5}) factories.push_back(threads(ranks, "_small", small_memory, 8));
  for (const int ranks : {2, 5}) factories.push_back(threads(ranks, "_direct", small_memory, 8, true));
  return factories;
}
INSTANTIATE_TEST_SUITE_P(Shm, BackendConformance, testing::ValuesIn(harnesses()), name_of_harness);
INSTANTIATE_TEST_SUITE_P(Shm, ExactConformance, testing::ValuesIn(harnesses()), name_of_harness);

constexpr std::array all_kinds{OpKind::all_reduce,     OpKind::broadcast,  OpKind::reduce, OpKind::all_gather,
                               OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather, OpKind::scatter};
const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

TEST(ShmBackend, RingsThoseWhoSleep) {
  ShmThreads harness(3, small_memory);
  harness.run([&](int rank, Backend& backend) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (std::uint64_t i = 0; i < 300; ++i) {
      Job job({signature_of(all_kinds[i % all_kinds.size()], DType::f32), {i % 5 == 0 ? 5000 : 20, 3}, true, i}, rank,
              3);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      job.start(backend);
      while (!job.step()) {
        const std::uint32_t ticket = harness.doorbell(rank).arm();
        if (job.step()) break;
        const auto before = std::chrono::steady_clock::now();
        harness.doorbell(rank).sleep(ticket, std::chrono::seconds(20));
        ASSERT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10)) << "a ring was lost";
      }
      harness.doorbell(rank).disarm();
      job.verify();
    }
  });
}

/// Takes steps of both until neither moves; returns whether both are complete.
bool finish_both(Job& a, Job& b) {
  bool complete = false;
  for (int i = 0; i < 10 && !complete; ++i) complete = a.step() & b.step();
  return complete;
}

TEST(ShmBackend, DoesNotWaitForPeers) {
  ShmThreads harness(2);
  Job early({sum_f32, {100'000}, true, 1}, 0, 2);
  early.start(harness.backend(0));
  EXPECT_FALSE(early.step());
  Job late({sum_f32, {100'000}, true, 1}, 1, 2);
  late.start(harness.backend(1));
  EXPECT_TRUE(finish_both(early, late));
  early.verify();
  late.verify();
}

TEST(ShmBackend, ARootNeedsNobodyAsLongAsThereIsRoom) {
  ShmThreads harness(2);
  Job root({broadcast_of(DType::f32, 0), {1000}, true, 1}, 0, 2);
  root.start(harness.backend(0));
  EXPECT_TRUE(root.step());
  harness.backend(0).abandon();
  Job other({broadcast_of(DType::f32, 0), {1000}, true, 1}, 1, 2);
  other.start(harness.backend(1));
  EXPECT_TRUE(other.step()) << "the root had done its part when it left";
  other.verify();
}

TEST(ShmBackend, HoldsMoreOperationsThanThereIsRoomFor) {
  ShmThreads harness(2);
  std::vector<std::unique_ptr<Job>> jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      jobs[rank].push_back(std::make_unique<Job>(Call{sum_f32, {5}, true, i}, rank, 2));
      jobs[rank].back()->start(harness.backend(rank));
    }
  }
  for (std::size_t i = 0; i < 200; ++i) {
    EXPECT_TRUE(finish_both(*jobs[0][i], *jobs[1][i]));
    jobs[0][i]->verify();
    jobs[1][i]->verify();
  }
}

TEST(ShmBackend, AnUnfinishedOperationThatDiesAbortsItsPeers) {
  for (const std::int64_t size : {100, 1'000'000}) {
    ShmThreads harness(2);
    Job survivor({sum_f32, {size}, true, 1}, 0, 2);
    survivor.start(harness.backend(0));
    EXPECT_FALSE(survivor.step());
    {
      Job leaver({sum_f32, {size}, true, 1}, 1, 2);
      leaver.start(harness.backend(1));
    }
    EXPECT_EQ(code_of_step(survivor), ErrorCode::aborted);
    EXPECT_EQ(code_of_step(survivor), ErrorCode::aborted) << "for ever";
  }
}

TEST(ShmBackend, AbandoningAbortsPeersAndLaterOperations) {
  ShmThreads harness(2);
  Job before({sum_f32, {10}, true, 1}, 0, 2);
  before.start(harness.backend(0));
  harness.backend(1).abandon();
  EXPECT_EQ(code_of_step(before), ErrorCode::aborted);
  Job after({sum_f32, {10}, true, 1}, 0, 2);
  after.start(harness.backend(0));
  EXPECT_EQ(code_of_step(after), ErrorCode::aborted);
  Job own({sum_f32, {10}, true, 1}, 1, 2);
  own.start(harness.backend(1));
  EXPECT_EQ(code_of_step(own), ErrorCode::aborted);
}

TEST(ShmBackend, GroupsHaveMemoryOfTheirOwn) {
  ShmThreads harness(3, small_memory);
  harness.run([&](int rank, Backend& backend) {
    std::vector<std::unique_ptr<Backend>> groups;
    std::vector<std::unique_ptr<Job>> jobs;
    for (GroupId id = 1; id <= 3; ++id) {  // pairs {0, 1}, {1, 2}, {0, 2}
      const std::vector<int> ranks = id == 1 ? std::vector{0, 1} : id == 2 ? std::vector{1, 2} : std::vector{0, 2};
      const auto place = std::find(ranks.begin(), ranks.end(), rank);
      if (place == ranks.end()) continue;
      GroupInfo group{id, "pair", ranks, static_cast<int>(place - ranks.begin())};
      groups.push_back(backend.for_group(group));
      ASSERT_NE(groups.back(), nullptr);
      jobs.push_back(std::make_unique<Job>(Call{sum_f32, {3000}, true, id}, group.rank, 2));
      jobs.back()->start(*groups.back());
    }
    if (rank == 1) std::swap(jobs[0], jobs[1]);  // nobody waits for a group that is not stepped
    for (const auto& job : jobs) job->finish();
    for (const auto& job : jobs) job->verify();
  });
}

// Ranks that give up at random moments, and free their memory at once: the sanitizers see whoever still touches it.
TEST(ShmBackend, NobodyTouchesTheMemoryOfThoseWhoLeft) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ShmThreads harness(3, small_memory);
    std::atomic<int> finished{0};
    harness.run([&](int rank, Backend& backend) {
      std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
      const unsigned patience = random() % 40;
      std::vector<std::unique_ptr<Job>> jobs;
      try {
        for (unsigned turn = 0; turn < 60; ++turn) {
          const std::int64_t size = turn % 10 == 9 ? 10'000 : 50;
          const Signature signature = signature_of(all_kinds[(turn + seed) % all_kinds.size()], DType::f32);
          jobs.push_back(std::make_unique<Job>(Call{signature, {size, 3}, turn % 3 != 0, turn}, rank, 3));
          jobs.back()->start(backend);
          if (rank == static_cast<int>(seed % 3) && turn == patience) return;
          for (const auto& job : jobs) (void)job->step();
          if (random() % 8 == 0) std::this_thread::yield();
        }
        for (const auto& job : jobs) {
          job->finish();
          job->verify();
        }
        ++finished;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::aborted);
      }
    });
    EXPECT_EQ(finished, 0);
  }
}

}  // namespace
}  // namespace kolo
