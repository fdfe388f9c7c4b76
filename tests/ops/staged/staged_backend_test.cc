// Device tensors through pinned memory over host backends: what any backend must do, on fake GPUs.

#include "ops/staged/backend.h"

#include <chrono>
#include <thread>
#include <utility>

#include "ops/local/backend.h"
#include "ops/staged/pipeline.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/late_stream.h"

namespace kolo {
namespace {

class StagedHarness final : public Harness {
 public:
  StagedHarness(int ranks, const StagedTuning& tuning) {
    auto hosts = local_backends(ranks, {});
    GroupInfo world;
    for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
    for (world.rank = 0; world.rank < ranks; ++world.rank) {
      BackendList mine;
      mine.push_back(std::move(hosts[static_cast<std::size_t>(world.rank)]));
      backends_.push_back(staged_backend(cuda_gpu(0), std::move(mine), world, tuning));  // more ranks than GPUs
    }
  }
  int ranks() const override { return static_cast<int>(backends_.size()); }
  Device device(int /*rank*/) const override { return {DeviceKind::cuda, 0}; }
  void run(const std::function<void(int rank, Backend& backend)>& body) override {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks(); ++rank)
      threads.emplace_back([&, rank] { body(rank, *backends_[static_cast<std::size_t>(rank)]); });
  }

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
};

HarnessFactory factory(std::string name, int ranks, const StagedTuning& tuning, int schedules, int shrinks) {
  return {std::move(name), [=] { return std::make_unique<StagedHarness>(ranks, tuning); }, schedules, shrinks};
}
constexpr StagedTuning tiny{4096, 2};

std::vector<HarnessFactory> harnesses() {
  if (sanitized) return {factory("tiny3ranks", 3, tiny, 2, 10)};
  return {factory("default1rank", 1, {}, 4, 20), factory("default2ranks", 2, {}, 3, 4),
          factory("tiny3ranks", 3, tiny, 2, 20)};
}
INSTANTIATE_TEST_SUITE_P(Staged, BackendConformance, ::testing::ValuesIn(harnesses()), name_of_harness);
INSTANTIATE_TEST_SUITE_P(Staged, ExactConformance, ::testing::ValuesIn(harnesses()), name_of_harness);

TEST(StagedStreams, EveryOneThatWritesABucketIsWaitedFor) {
  StagedHarness harness(2, tiny);
  harness.run([&](int rank, Backend& backend) {
    testing::expect_late_stream_is_waited_for(backend, harness.device(rank), all_reduce_of(DType::f32, ReduceOp::sum),
                                              3000, 2);
  });
}

/// A host backend that notes the lengths of the tensors it starts, and completes them on request.
class NotingHost final : public Backend {
 public:
  struct Notes {
    std::vector<std::int64_t> started{};
    bool holds = false, completes = false, abandoned = false;
  };
  explicit NotingHost(std::shared_ptr<Notes> notes) : notes_(std::move(notes)) {}
  std::string_view name() const override { return "noting"; }
  bool supports(const Signature&) const override { return true; }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    notes_->started.push_back(bucket.elements());
    return std::make_unique<Noted>(notes_);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override { notes_->abandoned = true; }

 private:
  struct Noted final : Operation {
    explicit Noted(std::shared_ptr<Notes> of) : notes(std::move(of)) {}
    bool step() override { return notes->completes; }
    bool needs_polling() const override { return true; }
    bool holds_backend() const override { return notes->holds; }
    std::shared_ptr<Notes> notes;
  };
  std::shared_ptr<Notes> notes_;
};

/// A GPU whose first point is said to have passed some time later than it has.
class HesitantGpu final : public testing::FakeGpu {
 public:
  using FakeGpu::FakeGpu;
  std::shared_ptr<const DevicePoint> mark(void* stream, bool timed) override {
    auto point = FakeGpu::mark(stream, timed);
    if (std::exchange(marked_, true)) return point;
    return std::make_shared<Hesitant>(std::move(point));
  }

 private:
  struct Hesitant final : DevicePoint {
    explicit Hesitant(std::shared_ptr<const DevicePoint> of) : point(std::move(of)) {}
    void order(void* stream) const override { point->order(stream); }
    bool passed() const override { return std::chrono::steady_clock::now() > until && point->passed(); }
    std::shared_ptr<const DevicePoint> point;
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  };
  ~HesitantGpu() override = default;
  bool marked_ = false;
};

/// Two buckets of one rank over such a host.
class StagedOverNotes : public ::testing::Test {
 protected:
  StagedOverNotes() {
    BackendList hosts;
    hosts.push_back(std::make_unique<NotingHost>(notes));
    backend = staged_backend(gpu, std::move(hosts), {.ranks = {0}, .rank = 0}, tiny);
    for (const std::int64_t count : {100, 200}) {
      const Tensor tensor{memory.data(), Shape{count}, DType::f32, {DeviceKind::cuda, 0}};
      buckets.push_back({all_reduce_of(DType::f32, ReduceOp::sum), {{tensor, tensor}}});
      buckets.back().signature.device = DeviceKind::cuda;
    }
  }
  /// For so long, and until something has been started.
  void step_for(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time, deadline = end + std::chrono::seconds(20);
    for (auto now = end - time; now < end || (notes->started.empty() && now < deadline);
         now = std::chrono::steady_clock::now()) {
      first->step();
      if (second) second->step();
    }
  }
  using Counts = std::vector<std::int64_t>;
  HesitantGpu& gpu = *new HesitantGpu(0, 1);
  GpuBuffer memory{gpu, 800};
  std::shared_ptr<NotingHost::Notes> notes = std::make_shared<NotingHost::Notes>();
  std::unique_ptr<Backend> backend;
  std::vector<Bucket> buckets;
  std::unique_ptr<Operation> first, second;
};

TEST_F(StagedOverNotes, HostsHaveTheOrderOfTheBuckets) {
  notes->completes = true;
  first = backend->start(buckets[0]);
  second = backend->start(buckets[1]);
  EXPECT_TRUE(testing::completes_within(*second, std::chrono::seconds(20)));
  EXPECT_TRUE(testing::completes_within(*first, std::chrono::seconds(20)));
  EXPECT_EQ(notes->started, (Counts{100, 200})) << "not that of the copies that are there first";
}

TEST_F(StagedOverNotes, AHostThatIsHeldIsGivenNothingElse) {
  notes->holds = true;
  first = backend->start(buckets[0]);
  second = backend->start(buckets[1]);
  step_for(std::chrono::milliseconds(60));
  EXPECT_EQ(notes->started, (Counts{100}));
  notes->holds = false;
  notes->completes = true;
  EXPECT_TRUE(testing::completes_within(*second, std::chrono::seconds(20)));
  EXPECT_TRUE(testing::completes_within(*first, std::chrono::seconds(20)));
  EXPECT_EQ(notes->started, (Counts{100, 200}));
}

TEST_F(StagedOverNotes, AnOperationThatIsDroppedBreaksTheGroup) {
  first = backend->start(buckets[0]);
  step_for(std::chrono::milliseconds(60));
  EXPECT_FALSE(notes->started.empty());
  first.reset();
  EXPECT_TRUE(notes->abandoned);
  second = backend->start(buckets[1]);
  EXPECT_THROW(second->step(), Error);
  second.reset();
  backend.reset();
  memory.leak();  // freed with what the pipeline has left
  gpu.free_what_was_left();
}

/// Claims of three groups on chunks of which two are made at most for the pipeline's sake.
TEST(ChunkPool, WhoHoldsNoneGetsOneWhateverOthersHold) {
  auto& gpu = testing::fake_gpu(0);
  const auto pool = std::make_shared<ChunkPool>(gpu, 1000, 2);
  EXPECT_EQ(gpu.memory_use().used, 0u);
  auto a = pool->claim(), b = pool->claim();
  EXPECT_EQ(gpu.memory_use().used, 2000u);
  auto first = pool->take(*a);
  ASSERT_TRUE(first);
  EXPECT_FALSE(pool->take(*a)) << "the other is for who holds none";
  auto second = pool->take(*b);
  ASSERT_TRUE(second);
  auto c = pool->claim();
  EXPECT_EQ(gpu.memory_use().used, 3000u) << "more than two, rather than to wait";
  pool->give_back(*a, std::move(*first));
  EXPECT_FALSE(pool->take(*b)) << "two are without";
  a.reset();
  auto third = pool->take(*b);
  EXPECT_TRUE(third) << "one is left for who is without";
  EXPECT_TRUE(pool->take(*c));
  EXPECT_FALSE(pool->take(*b));
  for (auto* chunk : {&second, &third}) pool->give_back(*b, std::move(**chunk));
  EXPECT_EQ(gpu.memory_use().used, 2000u) << "one was lost here";
}

TEST(ChunkPool, MemoryIsMissedByWhoClaimsItOnly) {
  auto& gpu = testing::fake_gpu(0);
  const auto pool = std::make_shared<ChunkPool>(gpu, 1000, 4);
  gpu.fail_allocation_after(0);
  EXPECT_THROW((void)pool->claim(), Error);
  gpu.fail_allocation_after(1);
  const auto claim = pool->claim();
  auto first = pool->take(*claim);
  ASSERT_TRUE(first);
  EXPECT_FALSE(pool->take(*claim)) << "it goes on with what it has";
  gpu.fail_allocation_after(1 << 30);
  auto second = pool->take(*claim);
  EXPECT_TRUE(second);
  for (auto* chunk : {&first, &second}) pool->give_back(*claim, std::move(**chunk));
}

/// Two ranks whose groups are given work in opposite orders, with one chunk for the pipeline: if a group's chunks could
/// take what another one's oldest needs, each rank would wait for the other.
TEST(ChunkPool, GroupsOfRanksDoNotWaitForEachOther) {
  for (int turn = 0; turn < 20; ++turn) {
    StagedHarness harness(2, {4096, 1});
    harness.run([&](int rank, Backend& world) {
      std::vector<std::unique_ptr<Backend>> groups;
      for (GroupId id : {1, 2, 3}) {
        GroupInfo info{.id = id, .name = "group", .ranks = {0, 1}, .rank = rank};
        groups.push_back(world.for_group(info));
      }
      std::vector<std::unique_ptr<Job>> jobs;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::size_t group = rank == 0 ? i : groups.size() - 1 - i;
        Call call{all_reduce_of(DType::f32, ReduceOp::sum), {9000}, true, group + 1};
        call.signature.device = DeviceKind::cuda;
        jobs.push_back(std::make_unique<Job>(call, rank, 2, nullptr, harness.device(rank)));
        jobs.back()->start(*groups[group]);
        for (int step = 0; step < turn; ++step) jobs.front()->step();
      }
      for (bool all = false; !all;) {
        all = true;
        for (auto& job : jobs) all &= job->step();
      }
      for (auto& job : jobs) job->verify();
    });
  }
}

/// …whose bucket is not cut: it gathers in memory that is not pinned.
TEST(StagedAdasum, StaysWithinThePinnedMemoryOfOthers) {
  StagedHarness harness(2, tiny);
  auto& gpu = testing::fake_gpu(0);
  const std::size_t before = gpu.memory_use().used;
  harness.run([&](int rank, Backend& backend) {
    std::vector<float> values(20'000), found(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);  // the same on both
    const GpuBuffer memory(gpu, values.size() * sizeof(float));
    gpu.copy(memory.data(), values.data(), memory.size());
    Bucket bucket{all_reduce_of(DType::f32, ReduceOp::adasum), {}};
    bucket.signature.device = DeviceKind::cuda;
    for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {3, 0}, {3, 19'000}}) {
      const Tensor tensor{memory.data() + begin * 4, Shape{count}, DType::f32, harness.device(rank)};
      bucket.tensors.push_back({tensor, tensor});
    }
    EXPECT_TRUE(testing::completes_within(*backend.start(bucket), std::chrono::seconds(20)));
    gpu.copy(found.data(), memory.data(), memory.size());
    EXPECT_EQ(found, values) << "adasum of equal values are these";
  });
  EXPECT_LE(gpu.memory_use().used - before, 2 * 2 * (4096u + 128)) << "two chunks of each rank";
}

TEST(StagedTuning, StaysWithinTheMemoryItIsGiven) {
  EXPECT_EQ(staged_within(64 << 20).chunk_bytes, 4 << 20);
  EXPECT_EQ(staged_within(1 << 20).chunk_bytes, 256 << 10);
  EXPECT_EQ(staged_within(1).chunk_bytes, 4096);
}

}  // namespace
}  // namespace kolo
