// The backends of ranks that are threads: local, and shm over heap.

#include <array>
#include <atomic>
#include <functional>
#include <optional>

#include "ops/host/region.h"
#include "ops/local/backend.h"
#include "ops/registry/registry.h"
#include "ops/shm/backend.h"
#include "ops/two_level/node_placement.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

/// How the backends of one group are made.
struct Variant {
  std::string name;
  std::function<std::vector<std::unique_ptr<Backend>>(int ranks, std::span<Doorbell>)> make;
  bool uses_memory = false;
  std::vector<int> domain_of{};
};

/// The same where ranks share several caches.
Variant at_caches(std::string name, const Variant& flat, std::vector<int> domain_of) {
  const auto make = [flat, domain_of](int ranks, std::span<Doorbell> doorbells) {
    return thread_domains_backends(flat.make(ranks, doorbells), domain_of);
  };
  return {std::move(name), make, flat.uses_memory, domain_of};
}

Variant shm_with(std::string name, const ShmTuning& tuning, bool uses_memory = false,
                 std::optional<ShmWay> forced = {}) {
  return {std::move(name),
          [=](int ranks, std::span<Doorbell> doorbells) {
            return shm_thread_backends(ranks, doorbells, tuning, std::make_shared<ShmKnown>(ShmKnown{forced}));
          },
          uses_memory};
}
const Variant local{"local", local_backends},
    shm = shm_with("shm", {}), shm_tiny = shm_with("shm_tiny", testing::tiny_memory),
    shm_small = shm_with("shm_small", testing::small_memory),
    shm_direct = shm_with("shm_direct", testing::small_memory, true, ShmWay::mapped),
    shm_reading = shm_with("shm_reading", testing::small_memory, false, ShmWay::read),
    shm_reading_mapped = shm_with("shm_reading_mapped", testing::tiny_memory, true, ShmWay::read),
    shm_default_direct = shm_with("shm_default_direct", {}, true), domains_4 = at_caches("domains", shm, {0, 0, 1, 1}),
    domains_5 = at_caches("domains", shm_small, {0, 1, 0, 2, 1}),
    domains_6 = at_caches("domains", shm, {0, 1, 1, 0, 2, 2}),
    domains_7 = at_caches("domains", shm_small, {0, 1, 2, 2, 2, 2, 2}),
    domains_direct = at_caches("domains_direct", shm_direct, {1, 1, 0, 1});

class ThreadHarness final : public Harness {
 public:
  ThreadHarness(int ranks, const Variant& variant)
      : ranks_(ranks),
        variant_(variant),
        region_(heap_region(static_cast<std::size_t>(ranks) * sizeof(Doorbell))),
        doorbells_(region_->at<Doorbell>(0), static_cast<std::size_t>(ranks)),
        backends_(variant.make(ranks, doorbells_)) {}

  int ranks() const override { return ranks_; }
  bool uses_memory() const override { return variant_.uses_memory; }
  std::vector<std::vector<int>> domains() const override {
    if (variant_.domain_of.empty()) return {};
    return placement_of(variant_.domain_of, 0).ranks;
  }
  Doorbell& doorbell(int rank) { return doorbells_[static_cast<std::size_t>(rank)]; }
  Backend& backend(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks_; ++rank) threads.emplace_back([&, rank] { body(rank, backend(rank)); });
  }

 private:
  int ranks_;
  Variant variant_;
  std::shared_ptr<Region> region_;
  std::span<Doorbell> doorbells_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

/// `shrinks`: what is large for default memory takes thousands of chunks of a small one.
HarnessFactory harness(int ranks, const Variant& variant, int schedules, int shrinks) {
  return {fmt::format("{}_{}ranks", variant.name, ranks),
          [=] { return std::make_unique<ThreadHarness>(ranks, variant); }, schedules, shrinks};
}

std::vector<HarnessFactory> harnesses() {
  if (sanitized) {
    return {harness(1, local, 3, 2),     harness(3, local, 3, 2),      harness(2, shm, 3, 2),
            harness(3, shm_small, 3, 4), harness(3, shm_direct, 3, 4), harness(3, shm_reading, 3, 4),
            harness(5, domains_5, 3, 8)};
  }
  std::vector<HarnessFactory> factories;
  for (const int ranks : {1, 2, 3, 4}) factories.push_back(harness(ranks, local, 3, 4));
  for (const int ranks : {1, 2, 3, 5}) factories.push_back(harness(ranks, shm, 3, 2));
  for (const int ranks : {2, 3}) factories.push_back(harness(ranks, shm_tiny, 1, 100));
  for (const int ranks : {2, 5}) factories.push_back(harness(ranks, shm_small, 2, 8));
  for (const int ranks : {2, 5}) factories.push_back(harness(ranks, shm_direct, 2, 8));
  for (const int ranks : {2, 5}) factories.push_back(harness(ranks, shm_reading, 2, 8));
  factories.push_back(harness(3, shm_reading_mapped, 1, 100));
  factories.push_back(harness(4, domains_4, 2, 8));
  factories.push_back(harness(5, domains_5, 2, 20));
  factories.push_back(harness(6, domains_6, 2, 20));
  factories.push_back(harness(7, domains_7, 2, 20));
  factories.push_back(harness(4, domains_direct, 2, 60));
  return factories;
}
INSTANTIATE_TEST_SUITE_P(Threads, BackendConformance, ::testing::ValuesIn(harnesses()), name_of_harness);
INSTANTIATE_TEST_SUITE_P(Threads, ExactConformance, ::testing::ValuesIn(harnesses()), name_of_harness);

constexpr std::array all_kinds{OpKind::all_reduce,     OpKind::broadcast,  OpKind::reduce, OpKind::all_gather,
                               OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather, OpKind::scatter};
const Signature sum_f32 = all_reduce_of(DType::f32, ReduceOp::sum);

/// The rank's part of a sum over two ranks, started.
struct Sum : Job {
  Sum(ThreadHarness& harness, int rank, std::int64_t size = 10, std::uint64_t seed = 1)
      : Job({sum_f32, {size}, true, seed}, rank, 2,
            harness.uses_memory() ? harness.backend(rank).memory().get() : nullptr) {
    start(harness.backend(rank));
  }
};

/// Takes steps of both until both are complete; returns whether they are after that many.
bool finish_both(Job& a, Job& b, int steps = 10) {
  bool complete = false;
  for (int i = 0; i < steps && !complete; ++i) complete = a.step() & b.step();
  return complete;
}

class ThreadBackends : public ::testing::TestWithParam<Variant> {
 protected:
  ThreadHarness two_{2, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Over, ThreadBackends,
                         ::testing::Values(local, shm, shm_small, shm_default_direct, shm_reading),
                         [](const auto& info) { return info.param.name; });

TEST_P(ThreadBackends, RingThoseWhoSleep) {
  ThreadHarness harness(3, GetParam());
  harness.run([&](int rank, Backend& backend) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (std::uint64_t i = 0; i < 300; ++i) {
      Job job({signature_of(all_kinds[i % all_kinds.size()], DType::f32), {i % 5 == 0 ? 5000 : 20, 3}, true, i}, rank,
              3);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      job.start(backend);
      sleep_until_complete(job, harness.doorbell(rank));
      job.verify();
    }
  });
}

TEST_P(ThreadBackends, DoNotWaitForPeers) {
  Sum early(two_, 0, 100'000);
  EXPECT_FALSE(early.step());
  Sum late(two_, 1, 100'000);
  EXPECT_TRUE(finish_both(late, early, GetParam().name == local.name ? 2 : 1000));
  early.verify();
  late.verify();
}

// Nobody waits for a large operation longer than for a step of it, which moves no more than a budget.
TEST_P(ThreadBackends, AStepOfALargeOperationMovesAPart) {
  constexpr std::int64_t elements = 1 << 20;
  Sum one(two_, 0, elements), other(two_, 1, elements);
  int steps = 0, idle = 0;
  for (bool complete = false; !complete; ++steps) {
    complete = one.step() & other.step();
    idle = complete || one.moved() || other.moved() ? 0 : idle + 1;
    ASSERT_LT(idle, 3) << "there is more to do, and both say that nothing moves";
  }
  EXPECT_GE(steps, 8) << "each rank reduces 2 MiB, and a step has 256 KiB";
  one.verify();
  other.verify();
}

TEST_P(ThreadBackends, ManyOperationsOfAGroupShareABudget) {
  std::vector<std::unique_ptr<Sum>> jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t i = 0; i < 8; ++i) jobs[rank].push_back(std::make_unique<Sum>(two_, rank, 1 << 17, i));
  }
  int rounds = 0;
  for (std::size_t complete = 0; complete < 16; ++rounds) {
    complete = 0;
    for (auto& theirs : jobs) {
      for (auto& job : theirs) complete += job->step() ? 1 : 0;
    }
  }
  EXPECT_GE(rounds, 8) << "each has a chunk to reduce on each rank";
  for (auto& theirs : jobs) {
    for (auto& job : theirs) job->verify();
  }
}

// Some backends find out by their first operations which way is fastest, and take turns with the ways until then.
TEST_P(ThreadBackends, TheSameOperationAgainAndAgain) {
  for (const OpKind kind : all_kinds) {
    constexpr std::uint64_t times = sanitized ? 8 : 30;
    for (std::uint64_t i = 0; i < 2 * times; ++i) {
      const bool in_place = i >= times || kind == OpKind::broadcast;
      const Call call{signature_of(kind, DType::f32), {20'000, 2}, in_place, i};
      Job one(call, 0, 2), other(call, 1, 2);
      one.start(two_.backend(0));
      other.start(two_.backend(1));
      ASSERT_TRUE(finish_both(one, other, 10'000)) << to_string(kind) << ", number " << i;
      one.verify();
      other.verify();
    }
  }
}

TEST_P(ThreadBackends, HoldMoreOperationsThanThereIsRoomFor) {
  std::vector<std::unique_ptr<Sum>> jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t i = 0; i < 200; ++i) jobs[rank].push_back(std::make_unique<Sum>(two_, rank, 5, i));
  }
  for (std::size_t i = 0; i < 200; ++i) {
    EXPECT_TRUE(finish_both(*jobs[0][i], *jobs[1][i]));
    jobs[0][i]->verify();
    jobs[1][i]->verify();
  }
}

TEST_P(ThreadBackends, AnUnfinishedOperationThatDiesAbortsItsPeers) {
  for (const std::int64_t size : {100, 1'000'000}) {
    ThreadHarness harness(2, GetParam());
    Sum survivor(harness, 0, size);
    EXPECT_FALSE(survivor.step());
    { const Sum leaver(harness, 1, size); }
    EXPECT_EQ(code_of_step(survivor), ErrorCode::aborted);
    EXPECT_EQ(code_of_step(survivor), ErrorCode::aborted) << "for ever";
  }
}

TEST_P(ThreadBackends, AbandoningAbortsPeersAndLaterOperations) {
  Sum before(two_, 0);
  two_.backend(1).abandon();
  EXPECT_EQ(code_of_step(before), ErrorCode::aborted);
  Sum after(two_, 0), own(two_, 1);
  EXPECT_EQ(code_of_step(after), ErrorCode::aborted);
  EXPECT_EQ(code_of_step(own), ErrorCode::aborted);
}

// Ranks that give up at random moments, and free their memory at once: the sanitizers see whoever still touches it.
TEST_P(ThreadBackends, NobodyTouchesTheMemoryOfThoseWhoLeft) {
  for (unsigned seed = 1; seed <= (sanitized ? 60 : 100); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ThreadHarness harness(3, GetParam());
    std::atomic<int> finished{0};
    harness.run([&](int rank, Backend& backend) {
      std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
      const unsigned last_turn = random() % 40;
      std::vector<std::unique_ptr<Job>> jobs;
      try {
        for (unsigned turn = 0; turn < 60; ++turn) {
          const std::int64_t size = turn % 10 != 9 ? 50 : GetParam().name == local.name ? 100'000 : 10'000;
          const Signature signature = signature_of(all_kinds[(turn + seed) % all_kinds.size()], DType::f32);
          jobs.push_back(std::make_unique<Job>(Call{signature, {size, 3}, turn % 3 != 0, turn}, rank, 3));
          jobs.back()->start(backend);
          if (rank == static_cast<int>(seed % 3) && turn == last_turn) return;
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

TEST(LocalBackend, ACompleteOperationMayDieWithoutAnotherStep) {
  ThreadHarness harness(2, local);
  for (std::uint64_t i = 0; i < 3; ++i) {
    Sum first(harness, 0, 10, i), second(harness, 1, 10, i);
    EXPECT_FALSE(first.step());
    EXPECT_TRUE(second.step());
    first.verify();
  }
}

TEST(ShmBackend, ARootNeedsNobodyAsLongAsThereIsRoom) {
  ThreadHarness harness(2, shm);
  Job root({broadcast_of(DType::f32, 0), {1000}, true, 1}, 0, 2);
  root.start(harness.backend(0));
  EXPECT_TRUE(root.step());
  harness.backend(0).abandon();
  Job other({broadcast_of(DType::f32, 0), {1000}, true, 1}, 1, 2);
  other.start(harness.backend(1));
  EXPECT_TRUE(other.step()) << "the root had done its part when it left";
  other.verify();
}

/// There is none, or some.
class ShortMemory final : public ShmMemory {
 public:
  explicit ShortMemory(bool some) : some_(some) {}
  std::shared_ptr<std::byte> map(int, const PeerAddress&) override { return nullptr; }

 private:
  Piece make_piece(std::size_t bytes, std::uint64_t number) override {
    if (!some_) throw Error(ErrorCode::backend, "memory is short");
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    return {{std::move(region), data}, number, bytes};
  }
  Piece adopt_piece(std::byte*, std::size_t, std::uint64_t) override { return {}; }
  bool some_;
};

TEST(ShmBackend, AGroupOfWhichARankHasNoMemoryIsServedByOthers) {
  std::vector<std::string> reported;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Introduction> members;
  for (int rank = 0; rank < 3; ++rank) {
    backends.push_back(
        shm_backend({std::make_shared<ShortMemory>(rank == 0),
                     {},
                     {},
                     {},
                     [&, rank](const std::string& line) { reported.push_back(fmt::format("{}: {}", rank, line)); }},
                    GroupInfo{7, "7 (ranks 0-2)", {0, 1, 2}, rank}));
    members.push_back(backends.back()->introduction());
  }
  EXPECT_FALSE(members[0].empty());
  for (const auto& backend : backends) EXPECT_FALSE(backend->introduce(members));
  EXPECT_EQ(reported, std::vector<std::string>{
                          "1: no shared memory for group 7 (ranks 0-2): memory is short; its tensors travel over MPI"});
}

TEST_P(ThreadBackends, GroupsAreApart) {
  ThreadHarness harness(3, GetParam());
  std::array<std::vector<std::pair<GroupInfo, std::unique_ptr<Backend>>>, 3> groups;  // by rank
  const std::array<std::vector<int>, 3> pairs{{{0, 1}, {1, 2}, {0, 2}}};
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    std::vector<Introduction> members;
    for (int i = 0; i < 2; ++i) {
      const int rank = pairs[pair][static_cast<std::size_t>(i)];
      const GroupInfo group{pair + 1, "pair", pairs[pair], i};
      auto& mine = groups[static_cast<std::size_t>(rank)].emplace_back(group, harness.backend(rank).for_group(group));
      members.push_back(mine.second->introduction());
    }
    for (int rank : pairs[pair]) ASSERT_TRUE(groups[static_cast<std::size_t>(rank)].back().second->introduce(members));
  }
  harness.run([&](int rank, Backend&) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (const auto& [group, backend] : groups[static_cast<std::size_t>(rank)]) {
      jobs.push_back(std::make_unique<Job>(Call{sum_f32, {3000}, true, group.id}, group.rank, 2));
      jobs.back()->start(*backend);
    }
    if (rank == 1) std::swap(jobs[0], jobs[1]);  // nobody waits for a group that is not stepped
    for (const auto& job : jobs) job->finish();
    for (const auto& job : jobs) job->verify();
  });
}

}  // namespace
}  // namespace kolo
