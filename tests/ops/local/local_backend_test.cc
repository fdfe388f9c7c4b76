#include "ops/local/backend.h"

#include <array>
#include <atomic>

#include "ops/host/region.h"
#include "tests/ops/backend_conformance.h"

namespace kolo {
namespace {

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
}

class LocalHarness final : public Harness {
 public:
  explicit LocalHarness(int ranks)
      : ranks_(ranks),
        region_(heap_region(static_cast<std::size_t>(ranks) * sizeof(Doorbell))),
        doorbells_(region_->at<Doorbell>(0), static_cast<std::size_t>(ranks)),
        backends_(local_backends(ranks, doorbells_)) {}

  int ranks() const override { return ranks_; }
  Doorbell& doorbell(int rank) { return doorbells_[static_cast<std::size_t>(rank)]; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    run_threads(ranks_, [&](int rank) { body(rank, *backends_[static_cast<std::size_t>(rank)]); });
  }

 private:
  int ranks_;
  std::shared_ptr<Region> region_;
  std::span<Doorbell> doorbells_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

std::vector<HarnessFactory> harnesses() {
  std::vector<HarnessFactory> factories;
  const int schedules = sanitized ? 5 : 10;
  for (const int ranks : sanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4}) {
    factories.push_back(
        {fmt::format("{}ranks", ranks), [ranks] { return std::make_unique<LocalHarness>(ranks); }, schedules});
  }
  return factories;
}
INSTANTIATE_TEST_SUITE_P(Local, BackendConformance, testing::ValuesIn(harnesses()), name_of_harness);
INSTANTIATE_TEST_SUITE_P(Local, ExactConformance, testing::ValuesIn(harnesses()), name_of_harness);

const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

TEST(LocalBackend, RingsThoseWhoSleep) {
  LocalHarness harness(3);
  harness.run([&](int rank, Backend& backend) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (std::uint64_t i = 0; i < 300; ++i) {
      Job job({sum_f32, {100, 3}, true, i}, rank, 3);
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

TEST(LocalBackend, DoesNotWaitForPeers) {
  const auto backends = local_backends(2, {});
  Job early({sum_f32, {10}, true, 1}, 0, 2);
  early.start(*backends[0]);
  EXPECT_FALSE(early.step());
  Job late({sum_f32, {10}, true, 1}, 1, 2);
  late.start(*backends[1]);
  EXPECT_FALSE(late.step()) << "rank 0 has not served its slice yet";
  EXPECT_TRUE(early.step());
  EXPECT_TRUE(late.step());
  early.verify();
  late.verify();
}

TEST(LocalBackend, HoldsMoreOperationsThanSlots) {
  const auto backends = local_backends(2, {});
  std::vector<std::unique_ptr<Job>> jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      jobs[rank].push_back(std::make_unique<Job>(Call{sum_f32, {5}, true, i}, rank, 2));
      jobs[rank].back()->start(*backends[static_cast<std::size_t>(rank)]);
    }
  }
  for (std::size_t i = 0; i < 200; ++i) {
    (void)jobs[0][i]->step();
    (void)jobs[1][i]->step();
    EXPECT_TRUE(jobs[0][i]->step());
    EXPECT_TRUE(jobs[1][i]->step());
    jobs[0][i]->verify();
    jobs[1][i]->verify();
  }
}

TEST(LocalBackend, AnUnfinishedOperationThatDiesAbortsItsPeers) {
  const auto backends = local_backends(2, {});
  Job survivor({sum_f32, {1000}, true, 1}, 0, 2);
  survivor.start(*backends[0]);
  {
    Job leaver({sum_f32, {1000}, true, 1}, 1, 2);
    leaver.start(*backends[1]);
  }
  EXPECT_EQ(code_of_step(survivor), ErrorCode::aborted);
}

TEST(LocalBackend, AbandoningAbortsPeersAndLaterOperations) {
  const auto backends = local_backends(2, {});
  Job before({sum_f32, {10}, true, 1}, 0, 2);
  before.start(*backends[0]);
  backends[1]->abandon();
  EXPECT_EQ(code_of_step(before), ErrorCode::aborted);
  Job after({sum_f32, {10}, true, 1}, 0, 2);
  after.start(*backends[0]);
  EXPECT_EQ(code_of_step(after), ErrorCode::aborted);
}

TEST(LocalBackend, ACompleteOperationMayDieWithoutAnotherStep) {
  const auto backends = local_backends(2, {});
  for (std::uint64_t i = 0; i < 3; ++i) {
    Job first({sum_f32, {10}, true, i}, 0, 2);
    Job second({sum_f32, {10}, true, i}, 1, 2);
    first.start(*backends[0]);
    second.start(*backends[1]);
    EXPECT_FALSE(first.step());
    EXPECT_TRUE(second.step());
    first.verify();
  }
}

// Ranks that give up at random moments, and free their memory at once: the sanitizers see whoever still touches it.
TEST(LocalBackend, NobodyTouchesTheMemoryOfThoseWhoLeft) {
  constexpr std::array kinds{OpKind::all_reduce,     OpKind::broadcast,  OpKind::reduce, OpKind::all_gather,
                             OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather, OpKind::scatter};
  for (unsigned seed = 1; seed <= (sanitized ? 60 : 200); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    LocalHarness harness(3);
    std::atomic<int> finished{0};
    harness.run([&](int rank, Backend& backend) {
      std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
      const unsigned patience = random() % 40;
      std::vector<std::unique_ptr<Job>> jobs;
      try {
        for (unsigned turn = 0; turn < 60; ++turn) {
          const std::int64_t size = turn % 10 == 9 ? 100'000 : 50;
          const Signature signature = signature_of(kinds[(turn + seed) % kinds.size()], DType::f32);
          jobs.push_back(std::make_unique<Job>(Call{signature, {size, 3}, turn % 3 != 0, turn}, rank, 3));
          jobs.back()->start(backend);
          if (rank == static_cast<int>(seed % 3) && turn == patience) return;
          for (const auto& job : jobs) (void)job->step();
          if (random() % 8 == 0) std::this_thread::yield();
        }
        for (const auto& job : jobs) job->finish();
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
