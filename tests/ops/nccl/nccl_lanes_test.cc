// Two lanes of the NCCL backend: what is small, or urgent, does not wait on the GPU for what is large. Over fakes: a
// GPU whose kernels begin when there is room for them, and streams that can be held.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <latch>
#include <random>

#include "tests/ops/nccl/nccl_harness.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/late_stream.h"

namespace kolo {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);  // only its parts are used here
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExactConformance);

namespace {

using namespace std::chrono_literals;
using testing::NcclHarness;

constexpr std::int64_t limit = 4096;  // bytes of a small bucket
constexpr NcclTuning tuning{1 << 16, 8192, false, false, false, limit};
constexpr std::int64_t small = limit / 4, large = small + 1;  // elements

/// One rank's sum of one tensor of ones, in place.
class Sum {
 public:
  Sum(Backend& backend, Device device, std::int64_t count, int priority = 0)
      : gpu_(testing::fake_gpu(device.index)), values_(static_cast<std::size_t>(count), 1), memory_(gpu_, bytes()) {
    gpu_.copy(memory_.data(), values_.data(), bytes());
    const Tensor tensor{memory_.data(), Shape{count}, DType::f32, device};
    bucket_ = {{.dtype = DType::f32, .device = DeviceKind::cuda, .priority = priority, .shape = tensor.shape},
               {{tensor, tensor}}};
    operation_ = backend.start(bucket_);
  }
  bool completes_within(std::chrono::milliseconds timeout) { return testing::completes_within(*operation_, timeout); }
  bool step() { return operation_->step(); }
  /// The memory stays: the GPU may still use it.
  void give_up() { operation_.reset(); }
  std::vector<float> values() {
    gpu_.copy(values_.data(), memory_.data(), bytes());
    return values_;
  }
  std::vector<float> expected(int ranks) const { return std::vector<float>(values_.size(), static_cast<float>(ranks)); }

 private:
  std::size_t bytes() const { return values_.size() * sizeof(float); }
  testing::FakeGpu& gpu_;
  std::vector<float> values_;
  GpuBuffer memory_;
  Bucket bucket_;
  std::unique_ptr<Operation> operation_;
};

struct NcclLanes : ::testing::Test {
  NcclLanes() {
    testing::set_fake_nccl({.in_progress = 80, .seed = 11});
    testing::clear_nccl_log();
  }
  static void* stream(NcclHarness& harness, int rank, std::size_t lane) {
    return harness.shared(rank).lanes[lane].stream();
  }
};

TEST_F(NcclLanes, SmallOperationsCompleteWhileALargeOneIsStuck) {
  NcclHarness harness(2, tuning);
  const auto released = std::make_shared<std::atomic<bool>>(false);
  std::latch ended(2);
  harness.run([&](int rank, Backend& backend) {
    const Device device = harness.device(rank);
    harness.shared(rank).open();
    if (rank == 1) {  // its part of the large ones does not begin: the kernel of rank 0 waits for it
      testing::fake_gpu(1).put(stream(harness, 1, bulk_lane), [released] { return released->load(); });
    }
    Sum first(backend, device, large), second(backend, device, large);
    std::vector<std::unique_ptr<Sum>> sums;  // freeing memory would wait for the GPU
    for (int turn = 0; turn < 20; ++turn) {
      sums.push_back(std::make_unique<Sum>(backend, device, turn < 10 ? small : large, turn < 10 ? 0 : 1));
      Sum& sum = *sums.back();
      const auto deadline = std::chrono::steady_clock::now() + 20s;
      while (!sum.step() && std::chrono::steady_clock::now() < deadline) {
        EXPECT_FALSE(first.step() || second.step());
        std::this_thread::yield();
      }
      EXPECT_EQ(sum.values(), sum.expected(2)) << turn;
    }
    EXPECT_FALSE(first.completes_within(1ms) || second.completes_within(1ms));
    ended.arrive_and_wait();
    *released = true;
    EXPECT_TRUE(first.completes_within(20s) && second.completes_within(20s));
    EXPECT_EQ(first.values(), first.expected(2));
    EXPECT_EQ(second.values(), second.expected(2));
  });
}

TEST_F(NcclLanes, HaveStreamsAndThreadBlocksThatFitBesideEachOther) {
  NcclHarness harness(1, tuning);
  harness.shared(0).open();
  EXPECT_EQ(testing::fake_gpu(0).priority_of(stream(harness, 0, urgent_lane)), StreamPriority::highest);
  EXPECT_EQ(testing::fake_gpu(0).priority_of(stream(harness, 0, bulk_lane)), StreamPriority::high);
  const auto& lanes = harness.shared(0).lanes;
  EXPECT_LE(lanes[bulk_lane].max_ctas + lanes[urgent_lane].max_ctas, testing::fake_multiprocessors);
}

/// While NCCL does a bucket of large tensors, or waits for peers, the next one is packed beside it.
TEST_F(NcclLanes, PackOneBucketWhileNcclHasAnother) {
  constexpr NcclTuning packs{1 << 16, 1 << 20, false, false, false, limit};
  NcclHarness harness(1, packs);
  harness.shared(0).open();
  const auto released = std::make_shared<std::atomic<bool>>(false);
  testing::fake_gpu(0).put(stream(harness, 0, bulk_lane), [released] { return released->load(); });
  struct Two {
    Two(NcclHarness& of, float value) : values(2 * large + 1, value), memory(testing::fake_gpu(0), values.size() * 4) {
      testing::fake_gpu(0).copy(memory.data(), values.data(), memory.size());
      for (const std::int64_t at : {std::int64_t{0}, large + 1}) {  // apart
        const Tensor tensor{memory.data() + at * 4, Shape{large}, DType::f32, of.device(0)};
        bucket.tensors.push_back({tensor, tensor});
      }
      bucket.signature = {.op = ReduceOp::max, .dtype = DType::f32, .device = DeviceKind::cuda, .shape = Shape{large}};
      operation = of.backend(0).start(bucket);
    }
    std::vector<float> values;
    GpuBuffer memory;
    Bucket bucket{};
    std::unique_ptr<Operation> operation;
  };
  Two first(harness, 1), second(harness, 2);
  const auto key = [](const NcclLane::Part& part) {
    std::uint32_t value = 0;
    testing::fake_gpu(0).copy(&value, part.staging.data, sizeof(value));
    return value;
  };
  const auto& parts = harness.shared(0).lanes[bulk_lane].parts;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  const auto packed = [&] { return key(parts[0]) == key_of(1.0F, false) && key(parts[1]) == key_of(2.0F, false); };
  while (!packed() && std::chrono::steady_clock::now() < deadline) {
    EXPECT_FALSE(first.operation->step() || second.operation->step());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(packed());
  Two third(harness, 3);  // its part is in use
  for (int turn = 0; turn < 20; ++turn) {
    EXPECT_FALSE(third.operation->step());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(packed());
  *released = true;
  for (Two* const two : {&first, &second, &third}) {
    EXPECT_TRUE(testing::completes_within(*two->operation, 20s));
    std::vector<float> found(two->values.size());
    testing::fake_gpu(0).copy(found.data(), two->memory.data(), two->memory.size());
    EXPECT_EQ(found, two->values);
  }
}

/// …and a communicator when a bucket needs it.
TEST_F(NcclLanes, OfOneGroupHaveACommunicatorEach) {
  NcclHarness harness(1, tuning);
  const auto inits = [] { return std::ranges::count(testing::nccl_log(0), "init 1"); };
  const auto run = [&](std::int64_t count) {
    return Sum(harness.backend(0), harness.device(0), count).completes_within(20s);
  };
  EXPECT_TRUE(run(large) && run(large));
  EXPECT_EQ(inits(), 1);
  EXPECT_TRUE(run(small) && run(large) && run(small));
  EXPECT_EQ(inits(), 2);
}

TEST_F(NcclLanes, AreChosenByWhatAllRanksAgreeOn) {
  NcclHarness harness(1, tuning);
  const auto lane = [&](const Signature& signature, const std::vector<BucketTensor>& tensors, int ranks = 2) {
    return harness.shared(0).lane_of({signature, tensors}, ranks);
  };
  const auto tensor = [](std::int64_t rows) { return Tensor{nullptr, Shape{rows}, DType::f32, {}}; };
  const auto sum = [&](std::int64_t rows, int priority = 0) {
    return lane({.dtype = DType::f32, .priority = priority}, {{tensor(rows), tensor(rows)}});
  };
  EXPECT_EQ(sum(small), urgent_lane);
  EXPECT_EQ(sum(large), bulk_lane);
  EXPECT_EQ(sum(large, 1), urgent_lane);
  EXPECT_EQ(sum(large, -1), bulk_lane);
  EXPECT_EQ(lane({.dtype = DType::f32}, {{tensor(small - 1), tensor(small - 1)}, {tensor(2), tensor(2)}}), bulk_lane)
      << "all tensors count";
  const auto rows = std::make_shared<const BlockRows>(BlockRows{small / 2, small / 2 + 1});
  for (const std::int64_t mine : *rows) {
    EXPECT_EQ(lane({.kind = OpKind::all_gather, .dtype = DType::f32}, {{tensor(mine), tensor(small + 1), rows}}),
              bulk_lane)
        << "blocks that differ count as the longest does, wherever they are";
  }
}

/// A rank by itself: the error of one lane's communicator ends the other's, too.
TEST_F(NcclLanes, AreAbortedTogether) {
  NcclHarness harness(1, tuning);
  DeviceBackend& backend = harness.backend(0);
  const auto logged = [](const std::string& line) { return std::ranges::count(testing::nccl_log(0), line); };
  const auto run = [&](std::int64_t count) {
    Sum sum(backend, harness.device(0), count);
    return sum.completes_within(20s) && sum.values() == sum.expected(1);
  };
  EXPECT_TRUE(run(large) && run(small));
  for (const std::int64_t failing : {large, small}) {
    testing::clear_nccl_log();
    testing::hang_nccl(0, true);
    Sum failed(backend, harness.device(0), failing);
    EXPECT_FALSE(failed.completes_within(20ms));
    Sum other(backend, harness.device(0), failing == large ? small : large);
    EXPECT_FALSE(other.completes_within(20ms));
    testing::fail_nccl_while_running(0, NcclResult::remote_error);
    EXPECT_THROW(failed.completes_within(20s), Error);
    failed.give_up();
    other.give_up();
    const auto behind = std::make_shared<std::atomic<bool>>(false);
    testing::fake_gpu(0).put(stream(harness, 0, failing == large ? urgent_lane : bulk_lane),
                             [behind, until = std::chrono::steady_clock::now() + 200ms] {
                               if (std::chrono::steady_clock::now() < until) return false;
                               return behind->exchange(true) || true;
                             });
    backend.recover();
    EXPECT_EQ(logged("abort"), 2);
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!backend.recovered() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(*behind) << "the other lane may write to the tensors, too";
    testing::hang_nccl(0, false);
    EXPECT_TRUE(run(large) && run(small));
    EXPECT_EQ(logged("init 1"), 2);
  }
  testing::clear_nccl_log();
  backend.abort_device_work();
  EXPECT_EQ(logged("abort"), 2);
}

/// …while one lane's communicator is there and the other's is not: the ranks' exchanges stay the same.
TEST_F(NcclLanes, RecoverWhereverTheRanksStand) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    NcclHarness harness(3, tuning);
    std::barrier together(3);
    harness.run([&](int rank, Backend& backend) {
      auto& device = dynamic_cast<DeviceBackend&>(backend);
      std::mt19937 same(seed), own(seed * 10 + static_cast<unsigned>(rank));
      for (int turn = 0; turn < 4; ++turn) {
        std::vector<std::unique_ptr<Sum>> sums;
        for (int i = 0; i < 4; ++i)
          sums.push_back(std::make_unique<Sum>(backend, harness.device(rank), same() % 2 == 0 ? small : large));
        for (unsigned steps = own() % 40; steps > 0; --steps) {
          for (const auto& sum : sums) sum->step();
        }
        for (const auto& sum : sums) sum->give_up();
        device.recover();
        while (!device.recovered()) std::this_thread::yield();
        together.arrive_and_wait();
      }
      Sum one(backend, harness.device(rank), small), other(backend, harness.device(rank), large);
      EXPECT_TRUE(one.completes_within(20s));
      EXPECT_TRUE(other.completes_within(20s));
      EXPECT_EQ(one.values(), one.expected(3));
      EXPECT_EQ(other.values(), other.expected(3));
    });
  }
}

}  // namespace
}  // namespace kolo
