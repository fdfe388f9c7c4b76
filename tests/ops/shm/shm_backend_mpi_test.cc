#include "ops/shm/processes.h"

#include <mpi.h>

#include <numeric>
#include <optional>

#include "ops/mpi_base/handles.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/environment.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::all_ranks;
using testing::this_rank;

std::unique_ptr<Backend> make_backend(std::span<Doorbell> doorbells = {}, const ShmTuning* tuning = nullptr,
                                      std::optional<ShmWay> forced = {}) {
  MpiGathering world(MPI_COMM_WORLD);
  return shm_process_backend(
      world, doorbells, [](const std::string& line) { ADD_FAILURE() << line; },
      std::make_shared<ShmKnown>(ShmKnown{forced}), tuning);
}

class ShmProcesses final : public Harness {
 public:
  explicit ShmProcesses(const ShmTuning* tuning, bool uses_memory = false, std::optional<ShmWay> forced = {})
      : backend_(make_backend({}, tuning, forced)), uses_memory_(uses_memory) {}
  int ranks() const override { return all_ranks(); }
  bool uses_memory() const override { return uses_memory_; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override { body(this_rank(), *backend_); }

 private:
  std::unique_ptr<Backend> backend_;
  bool uses_memory_;
};

const auto harnesses = ::testing::Values(
    HarnessFactory{"default", [] { return std::make_unique<ShmProcesses>(nullptr); }, 4},
    HarnessFactory{"small", [] { return std::make_unique<ShmProcesses>(&testing::small_memory); }, 4},
    HarnessFactory{"reading",
                   [] { return std::make_unique<ShmProcesses>(&testing::small_memory, false, ShmWay::read); }, 2},
    HarnessFactory{"direct",
                   [] { return std::make_unique<ShmProcesses>(&testing::small_memory, true, ShmWay::mapped); }, 2});
INSTANTIATE_TEST_SUITE_P(Shm, BackendConformance, harnesses, name_of_harness);
INSTANTIATE_TEST_SUITE_P(Shm, ExactConformance, harnesses, name_of_harness);

const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

TEST(ShmProcesses, RingThoseWhoSleep) {
  MpiGathering world(MPI_COMM_WORLD);
  std::vector<int> all(static_cast<std::size_t>(all_ranks()));
  std::iota(all.begin(), all.end(), 0);
  const auto region = shared_region(world, all, static_cast<std::size_t>(all_ranks()) * sizeof(Doorbell));
  const std::span<Doorbell> doorbells(region->at<Doorbell>(0), static_cast<std::size_t>(all_ranks()));
  const auto backend = make_backend(doorbells, &testing::small_memory);
  Doorbell& doorbell = doorbells[static_cast<std::size_t>(this_rank())];
  std::mt19937 random(static_cast<unsigned>(this_rank()));
  for (std::uint64_t i = 0; i < 300; ++i) {
    Job job({sum_f32, {i % 5 == 0 ? 5000 : 20, 3}, true, i}, this_rank(), all_ranks());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    job.start(*backend);
    sleep_until_complete(job, doorbell);
    job.verify();
  }
  MPI_Barrier(MPI_COMM_WORLD);  // peers may still ring
}

TEST(ShmProcesses, MakeGroupsOfSomeRanks) {
  const auto backend = make_backend();
  const int n = all_ranks();
  std::vector<std::unique_ptr<Backend>> groups;
  for (GroupId id = 1; id <= 20; ++id) {  // the first and some of the rest; neighbours
    std::vector<int> ranks;
    for (int rank = 0; rank < n; ++rank) {
      if (rank == 0 || (id >> rank & 1) != 0) ranks.push_back(rank);
    }
    const auto place = std::find(ranks.begin(), ranks.end(), this_rank());
    const bool member = place != ranks.end();
    const GroupInfo group{id, "some", ranks, static_cast<int>(place - ranks.begin())};
    if (member) groups.push_back(backend->for_group(group));
    MpiGathering world(MPI_COMM_WORLD);
    const auto said = all_introductions(world, member ? groups.back()->introduction() : Introduction());
    if (!member) continue;
    std::vector<Introduction> members;
    for (int rank : ranks) members.push_back(said[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(groups.back()->introduce(members));
    Job job({sum_f32, {5000, 3}, id % 2 == 0, id}, group.rank, group.size());
    job.start(*groups.back());
    job.finish();
    job.verify();
  }
}

TEST(ShmProcesses, SurviveThatOneLeavesInTheMiddle) {
  if (all_ranks() == 1) GTEST_SKIP() << "needs peers";
  const auto backend = make_backend();
  for (std::uint64_t i = 0; i < 50; ++i) {
    Job job({sum_f32, {1000}, true, i}, this_rank(), all_ranks());
    job.start(*backend);
    if (this_rank() == 1 && i == 30) {
      backend->abandon();
      break;
    }
    try {
      job.finish();
      job.verify();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_EQ(i, 30u);
      backend->abandon();
      break;
    }
    EXPECT_LT(i, 30u);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(ShmProcesses, SayWhyMemoryCannotBeShared) {
  for (int victim = 0; victim < all_ranks(); ++victim) {
    std::optional<NoDescriptors> handicap;
    if (this_rank() == victim) handicap.emplace();
    std::string line;
    MpiGathering world(MPI_COMM_WORLD);
    EXPECT_EQ(shm_process_backend(world, {}, [&](const std::string& text) { line = text; }), nullptr);
    const std::string expected = "no shared memory for group world: cannot make shared memory with memfd_create";
    EXPECT_EQ(line.find(expected), this_rank() == victim ? 0 : std::string::npos) << line;
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace kolo
