// What the NCCL backend calls, and in which order: launches, groups, registration, the life of communicators. Recorded
// by a fake.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/ops/nccl/nccl_harness.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/late_stream.h"

namespace kolo {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);  // only its parts are used here
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExactConformance);

namespace {

using testing::clear_nccl_log;
using testing::nccl_log;
using testing::NcclHarness;
using Lines = std::vector<std::string>;

bool comes(const std::function<bool()>& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!what()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class NcclCalls : public ::testing::Test {
 protected:
  NcclCalls() {
    testing::set_fake_nccl({});
    clear_nccl_log();
  }
  static void run(NcclHarness& harness, const std::vector<Call>& calls, bool in_memory = false) {
    harness.run([&](int rank, Backend& backend) {
      for (const Call& given : calls) {
        Call call = given;
        call.signature.device = DeviceKind::cuda;
        call.exact = false;
        Job job(call, rank, harness.ranks(), in_memory ? backend.memory().get() : nullptr, harness.device(rank));
        job.start(backend);
        job.finish();
        job.verify();
      }
    });
  }
  static Lines since_init(int rank) {
    Lines log = nccl_log(rank);
    log.erase(log.begin(), std::ranges::find_if(log, [](const auto& line) { return line.starts_with("init"); }));
    return log;
  }
};

TEST_F(NcclCalls, ABucketIsOneLaunch) {
  {
    NcclHarness harness(2, {1 << 20, 4096});
    run(harness, {{all_reduce_of(DType::f32, ReduceOp::average), {5000, 10, 20, 3000}, true, 2},
                  {all_reduce_of(DType::f16, ReduceOp::sum, 0.5), {7}, true, 4},
                  {broadcast_of(DType::boolean, 1), {100, 3}, true, 2}});
  }
  EXPECT_EQ(since_init(0),
            (Lines{"init 2", "all_reduce 5000 7 op 4", "all_reduce 30 7 op 4", "all_reduce 3000 7 op 4", "group 3",
                   "all_reduce 7 6 premul", "group 1", "broadcast 103 1 peer 1", "group 1", "finalize", "destroy"}));
  EXPECT_EQ(since_init(1), since_init(0));
}

TEST_F(NcclCalls, UnevenBlocksAreGroups) {
  NcclHarness harness(2, {1 << 20, 4096});
  Call uneven{signature_of(OpKind::all_gather, DType::f32), {3000}, false, 2};
  uneven.uneven = true;
  run(harness, {uneven,
                {signature_of(OpKind::reduce_scatter, DType::f32), {3001}, false, 2},
                {signature_of(OpKind::all_to_all, DType::f32), {3000}, false, 2}});
  const Lines log = since_init(0);
  EXPECT_EQ(std::ranges::count_if(log, [](const auto& line) { return line.starts_with("broadcast"); }), 2);
  EXPECT_EQ(
      std::ranges::count_if(
          log, [](const auto& line) { return line.starts_with("reduce 1501") || line.starts_with("reduce 1500"); }),
      2);
  EXPECT_EQ(log.back(), "group 2") << "a send and a receive";
}

TEST_F(NcclCalls, MemoryIsRegisteredOnceIfAskedFor) {
  {
    NcclHarness harness(2, {1 << 16, 4096, false, true}, true);
    run(harness, std::vector<Call>(3, {all_reduce_of(DType::f32, ReduceOp::sum), {10, 20}, true, 2}), true);
  }
  const Lines log = since_init(0);
  EXPECT_EQ(log[1], "register 131072") << "the pack buffers, before anything runs";
  EXPECT_EQ(std::ranges::count(log, "register 131072"), 1);
}

TEST_F(NcclCalls, NothingIsRegisteredOtherwise) {
  NcclHarness harness(2, {1 << 16, 4096}, true);
  run(harness, {{all_reduce_of(DType::f32, ReduceOp::sum), {5000}, true, 2}}, true);
  EXPECT_TRUE(std::ranges::none_of(since_init(0), [](const auto& line) { return line.starts_with("register"); }));
}

/// In an arena no kernel runs but NCCL's.
TEST_F(NcclCalls, AnArenaIsNotTouchedByKernels) {
  NcclHarness harness(2, {1 << 20, 1 << 20});
  harness.run([&](int rank, Backend& backend) {
    auto& gpu = testing::fake_gpu(rank);
    const auto memory = backend.memory()->allocate(4000, harness.device(rank));
    Bucket bucket{{.dtype = DType::f32, .device = DeviceKind::cuda}, {}};
    for (int i = 0; i < 10; ++i) {
      const Tensor tensor{memory.get() + i * 400, Shape{100}, DType::f32, harness.device(rank)};
      bucket.tensors.push_back({tensor, tensor});
    }
    bucket.signature.shape = Shape{100};
    gpu.load_kernels();  // of which the process has one set
    gpu.clear_log();
    const auto operation = backend.start(bucket);
    while (!operation->step()) std::this_thread::yield();
    EXPECT_EQ(gpu.log(), Lines());
  });
  EXPECT_EQ(since_init(0), (Lines{"init 2", "all_reduce 1000 7 op 0", "group 1"}));
}

TEST_F(NcclCalls, EveryStreamThatWritesABucketIsWaitedFor) {
  NcclHarness harness(2, {1 << 20, 4096});
  harness.run([&](int rank, Backend& backend) {
    for (const std::int64_t count : {100, 2000})
      testing::expect_late_stream_is_waited_for(backend, harness.device(rank), all_reduce_of(DType::f32, ReduceOp::sum),
                                                count, 2);
  });
}

/// Communicators that block: a rank whose peer has not come goes on with other things, wherever NCCL waits for it; and
/// what it leaves so is aborted.
TEST_F(NcclCalls, NobodyWaitsWhereCommunicatorsBlock) {
  constexpr NcclTuning blocking{1 << 16, 4096, false, false, false, 1024, true};
  NcclHarness harness(2, blocking);
  const GpuBuffer memory(testing::fake_gpu(0), 8000), other_memory(testing::fake_gpu(1), 8000);
  const auto bucket = [&](int rank, std::int64_t count, ReduceOp op = ReduceOp::sum, DType dtype = DType::f32) {
    const Tensor tensor{(rank == 0 ? memory : other_memory).data(), Shape{count}, dtype, harness.device(rank)};
    return Bucket{{.op = op, .dtype = dtype, .device = DeviceKind::cuda, .shape = tensor.shape}, {{tensor, tensor}}};
  };
  const auto steps_alone = [&](Operation& operation) {
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0; turn < 20; ++turn) {
      EXPECT_FALSE(operation.step());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  };
  struct Case {
    std::int64_t count;
    ReduceOp op = ReduceOp::sum;
    DType dtype = DType::f32;
  };
  // Another size, op or type is connected anew; 520, 700 and 1000 are within a power of two, but not of one algorithm.
  for (const auto& [count, op, dtype] : {Case{1000},
                                         {520},
                                         {700},
                                         {1000},
                                         {2000},
                                         {2000},
                                         {500},
                                         {1000, ReduceOp::average},
                                         {1000, ReduceOp::sum, DType::i32}}) {
    const Bucket mine = bucket(0, count, op, dtype), theirs = bucket(1, count, op, dtype);
    const auto first = harness.backend(0).start(mine), second = harness.backend(1).start(theirs);
    steps_alone(*first);
    std::jthread peer([&] { EXPECT_TRUE(testing::completes_within(*second, std::chrono::seconds(20))); });
    EXPECT_TRUE(testing::completes_within(*first, std::chrono::seconds(20)));
  }
  const Bucket mine = bucket(0, 100), theirs = bucket(1, 100);
  auto first = harness.backend(0).start(mine), second = harness.backend(1).start(theirs);
  steps_alone(*first);
  first.reset();
  second.reset();
  for (const int rank : {0, 1}) harness.backend(rank).recover();
  for (const int rank : {0, 1}) EXPECT_TRUE(comes([&] { return harness.backend(rank).recovered(); }));
  const auto again = harness.backend(0).start(mine), peers = harness.backend(1).start(theirs);
  std::jthread peer([&] { EXPECT_TRUE(testing::completes_within(*peers, std::chrono::seconds(20))); });
  EXPECT_TRUE(testing::completes_within(*again, std::chrono::seconds(20)));
}

/// A rank by itself, whose NCCL fails.
class NcclFailures : public NcclCalls {
 protected:
  static constexpr NcclTuning tuning{1 << 16, 4096, false, true};

  /// A bucket of one tensor in place.
  struct Work {
    Work(NcclFailures& test, std::byte* data, std::int64_t count) {
      const Tensor tensor{data, Shape{count}, DType::f32, {DeviceKind::cuda, 0}};
      bucket.tensors.push_back({tensor, tensor});
      bucket.signature.shape = tensor.shape;
      operation = test.backend().start(bucket);
    }
    Bucket bucket{{.dtype = DType::f32, .device = DeviceKind::cuda}, {}};
    std::unique_ptr<Operation> operation;
  };
  /// What the operation throws within a few seconds.
  static std::string fault_of(Operation& operation) {
    try {
      testing::completes_within(operation, std::chrono::seconds(5));
    } catch (const Error& fault) {
      return fault.what();
    }
    return "none";
  }
  DeviceBackend& backend() { return harness.backend(0); }
  std::shared_ptr<std::byte> memory(std::size_t bytes) {
    return backend().memory()->allocate(bytes, harness.device(0));
  }
  bool runs(std::byte* data, std::int64_t count) {
    return testing::completes_within(*Work(*this, data, count).operation, std::chrono::seconds(5));
  }
  static std::ptrdiff_t logged(const std::string& line) { return std::ranges::count(nccl_log(0), line); }

  testing::FakeGpu& gpu = testing::fake_gpu(0);
  NcclHarness harness{1, tuning};
};

/// …after it was launched, while its work never ends: the operation fails, what stands behind it on the stream has run
/// when the group has recovered, and the next communicator knows what this one did.
TEST_F(NcclFailures, WhileItsWorkRuns) {
  const auto data = memory(8000);
  EXPECT_TRUE(runs(data.get(), 2000));
  testing::hang_nccl(0, true);
  testing::fail_nccl_while_running(0, NcclResult::remote_error);
  {
    Work work(*this, data.get(), 2000);
    EXPECT_NE(fault_of(*work.operation).find("asynchronously, failed (remote process exited"), std::string::npos);
  }
  void* const stream = harness.shared(0).lanes[urgent_lane].stream();
  const auto behind = std::make_shared<std::atomic<bool>>(false);
  gpu.put(stream, [behind] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    *behind = true;
    return true;
  });
  backend().recover();
  EXPECT_FALSE(backend().recovered()) << "nothing waits for the stream";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!backend().recovered() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(*behind) << "who learns of the failure may write to the tensors at once";
  testing::hang_nccl(0, false);
  EXPECT_TRUE(runs(data.get(), 2000));
  EXPECT_EQ(logged("abort"), 1);
  EXPECT_EQ(logged("register 131072"), 2) << "with each of two communicators";
  EXPECT_EQ(logged("register 8000"), 2);
}

TEST_F(NcclFailures, InACall) {
  const auto data = memory(8000);
  testing::fail_nccl_call(0, NcclResult::system_error);
  {
    Work work(*this, data.get(), 2000);
    EXPECT_NE(fault_of(*work.operation).find("ncclAllReduce failed (fake error"), std::string::npos);
  }
  backend().recover();
  EXPECT_TRUE(runs(data.get(), 2000));
  EXPECT_EQ(nccl_log(0).back(), "group 1") << "of its own";
}

TEST_F(NcclCalls, ACommunicatorThatDoesNotEndIsAborted) {
  {
    NcclHarness harness(1, {1 << 16, 4096});
    run(harness, {{all_reduce_of(DType::f32, ReduceOp::sum), {100}, true, 2}});
    testing::fail_nccl(0, NcclResult::remote_error, -1);
  }
  EXPECT_EQ(nccl_log(0).back(), "abort");
}

/// One rank, with the world and groups of it alone.
class NcclEnds : public NcclFailures {
 protected:
  ~NcclEnds() override { testing::hold_nccl_ends(false); }
  std::unique_ptr<Backend> used_group(GroupId id) {
    auto made = backend().for_group({.id = id, .name = "group", .ranks = {0}});
    EXPECT_TRUE(uses(*made));
    return made;
  }
  bool uses(Backend& group) {
    const Tensor tensor{data.get(), Shape{2000}, DType::f32, {DeviceKind::cuda, 0}};
    const Bucket bucket{{.dtype = DType::f32, .device = DeviceKind::cuda, .shape = tensor.shape}, {{tensor, tensor}}};
    return testing::completes_within(*group.start(bucket), std::chrono::seconds(5));
  }
  std::shared_ptr<std::byte> data = memory(8000);
};

TEST_F(NcclEnds, AreWaitedForByNobody) {
  testing::hold_nccl_ends(true);
  used_group(5).reset();
  EXPECT_EQ(nccl_log(0).back(), "finalize") << "all ranks begin it where they agree that the group is gone";
  EXPECT_TRUE(uses(backend()));
  for (int turn = 0; turn < 100; ++turn) backend().progress(false);
  EXPECT_EQ(logged("destroy") + logged("abort"), 0);
  testing::hold_nccl_ends(false);
  for (int turn = 0; turn < 10; ++turn) backend().progress(false);
  EXPECT_EQ(logged("destroy"), 1) << "when it has come to rest";
  used_group(6).reset();
  for (int turn = 0; turn < 10; ++turn) EXPECT_TRUE(uses(backend()));
  EXPECT_EQ(logged("destroy"), 2) << "work of other groups brings it further, too";
}

TEST_F(NcclEnds, TakeFiveSecondsAtMostWhenTheWorldEnds) {
  testing::hold_nccl_ends(true);
  used_group(5).reset();
  harness.end();
  EXPECT_EQ(logged("destroy"), 0);
  EXPECT_EQ(logged("abort"), 1);
}

TEST_F(NcclEnds, AreAbortedWithTheWork) {
  testing::hold_nccl_ends(true);
  used_group(5).reset();
  backend().abort_device_work();
  EXPECT_EQ(logged("abort"), 1);
}

TEST_F(NcclFailures, NothingIsAllocatedBeforeItIsNeeded) {
  const NcclHarness other(1, {1 << 16, 4096});
  const auto used = [&] { return gpu.memory_use().used; };
  const std::size_t before = used();
  const NcclHarness more(1, {1 << 20, 4096});
  EXPECT_EQ(used(), before);
  gpu.forget_context();
  const NcclHarness third(1, {1 << 20, 4096});
  EXPECT_FALSE(gpu.has_context()) << "nor a context, which takes hundreds of MiB";
  gpu.clear_log();
  const auto first = backend().reserve({.device = DeviceKind::cuda});
  EXPECT_EQ(gpu.log(), Lines{"load kernels"}) << "not at their first launches";
  EXPECT_EQ(used(), before + 2 * (1 << 16)) << "of both lanes";
  EXPECT_EQ(backend().reserve({.device = DeviceKind::cuda}), first) << "once";
}

TEST_F(NcclCalls, InputsAndOutputsAreRegisteredToo) {
  NcclHarness harness(2, {1 << 16, 4096, false, true});
  harness.run([&](int rank, Backend& backend) {
    const Device device = harness.device(rank);
    const auto in = backend.memory()->allocate(8000, device), out = backend.memory()->allocate(16'000, device);
    const GpuBuffer own(testing::fake_gpu(rank), 24'000);  // is the program's
    Bucket bucket{{.kind = OpKind::all_gather, .dtype = DType::f32, .device = DeviceKind::cuda, .shape = Shape{2000}},
                  {}};
    bucket.tensors.push_back(
        {{in.get(), Shape{2000}, DType::f32, device}, {out.get(), Shape{4000}, DType::f32, device}});
    Bucket other = bucket;
    other.tensors = {
        {{own.data(), Shape{2000}, DType::f32, device}, {own.data() + 8000, Shape{4000}, DType::f32, device}}};
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_TRUE(testing::completes_within(*backend.start(bucket), std::chrono::seconds(20)));
      EXPECT_TRUE(testing::completes_within(*backend.start(other), std::chrono::seconds(20)));
    }
  });
  Lines registered = since_init(0);
  std::erase_if(registered, [](const auto& line) { return !line.starts_with("register"); });
  EXPECT_EQ(registered, (Lines{"register 131072", "register 8000", "register 16000"}));
}

/// The fake complains where NCCL is given registered memory on some ranks, or other places in it.
TEST_F(NcclCalls, WhatRanksPlaceDifferentlyGoesThroughThePackBuffer) {
  constexpr std::size_t bytes = 100'000, elements = 8000;  // more than direct, and than the pack buffer
  for (const bool large : {true, false}) {
    for (const std::ptrdiff_t shift : {0, 64, -1}) {
      NcclHarness harness(2, {1 << 14, large ? 4096 : 1 << 20, false, true});
      harness.run([&](int rank, Backend& backend) {
        auto& gpu = testing::fake_gpu(rank);
        const Device device = harness.device(rank);
        const GpuBuffer own(gpu, bytes);
        const auto memory = backend.memory()->allocate(bytes, device);
        const bool outside = shift < 0 && rank == 1;
        std::byte* const begin = outside ? own.data() : memory.get() + (rank == 1 ? shift : 0);
        for (const OpKind kind : {OpKind::all_reduce, OpKind::broadcast, OpKind::all_gather, OpKind::reduce_scatter}) {
          std::vector<float> values(elements, static_cast<float>(rank + 1)), found(elements);
          gpu.copy(begin, values.data(), elements * 4);
          Bucket bucket{{.kind = kind, .dtype = DType::f32, .device = DeviceKind::cuda}, {}};
          bucket.signature.root = 1;
          const auto piece = [&](std::size_t at, std::size_t count) {
            return Tensor{begin + at * 4, Shape{static_cast<std::int64_t>(count)}, DType::f32, device};
          };
          const auto block = static_cast<std::size_t>(rank) * elements / 2;
          const Tensor whole = piece(0, elements), mine = piece(block, elements / 2);
          if (kind == OpKind::all_gather)
            bucket.tensors.push_back({mine, whole});
          else if (kind == OpKind::reduce_scatter)
            bucket.tensors.push_back({whole, mine});
          else
            bucket.tensors = {{piece(0, 100), piece(0, 100)}, {piece(100, 7900), piece(100, 7900)}};
          bucket.signature.shape = bucket.tensors.front().in.shape;
          gpu.load_kernels();
          gpu.clear_log();
          EXPECT_TRUE(testing::completes_within(*backend.start(bucket), std::chrono::seconds(20)));
          EXPECT_TRUE(shift != 0 || !large || gpu.log().empty()) << "in place";
          EXPECT_TRUE(shift == 0 || !gpu.log().empty()) << "on both ranks";
          gpu.copy(found.data(), begin, elements * 4);
          for (std::size_t i = 0; i < elements; ++i) {
            const float expected = kind == OpKind::all_reduce   ? 3.0F
                                   : kind == OpKind::broadcast  ? 2.0F
                                   : kind == OpKind::all_gather ? (i < elements / 2 ? 1.0F : 2.0F)
                                   : i / (elements / 2) == static_cast<std::size_t>(rank)
                                       ? 3.0F
                                       : static_cast<float>(rank + 1);
            ASSERT_EQ(found[i], expected) << to_string(kind) << " " << i << " shift " << shift;
          }
        }
      });
    }
  }
}

TEST_F(NcclCalls, MemoryIsZeroAndGivenBack) {
  NcclHarness harness(1, {1 << 16, 4096});
  const auto used = [] { return testing::fake_gpu(0).memory_use().used; };
  const std::size_t before = used();
  auto memory = harness.backend(0).memory()->allocate(100'000, harness.device(0));
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + 100'000, [](std::byte value) { return value == std::byte{0}; }));
  EXPECT_EQ(used(), before + 100'000);
  const NcclMemory& pieces = *harness.shared(0).memory;
  for (const std::ptrdiff_t at : {0, 99'999}) {
    EXPECT_EQ(pieces.piece_of(memory.get() + at).first, memory);
    EXPECT_EQ(pieces.piece_of(memory.get() + at).second, 100'000u);
  }
  EXPECT_EQ(pieces.piece_of(memory.get() + 100'000).first, nullptr);
  memory.reset();
  EXPECT_TRUE(comes([&] { return used() == before; }));
}

/// Whoever gives it up waits for nothing; it is unmapped when all streams have passed, the program's too.
TEST_F(NcclFailures, MemoryIsUnmappedWhenNothingUsesItAnyMore) {
  const auto used = [&] { return gpu.memory_use().used; };
  const GpuStream programs(gpu);
  const std::size_t before = used();
  for (void* const stream : {programs.get(), (harness.shared(0).open(), harness.shared(0).lanes[bulk_lane].stream())}) {
    auto data = memory(8000);
    const auto go_on = std::make_shared<std::atomic<bool>>(false), written = std::make_shared<std::atomic<bool>>(false);
    gpu.put(stream, [=, begin = data.get()] {
      if (!*go_on) return false;
      std::memset(begin, 1, 8000);  // AddressSanitizer, and valgrind, find memory that is gone
      *written = true;
      return true;
    });
    data.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(used(), before + 8000);
    *go_on = true;
    EXPECT_TRUE(comes([&] { return used() == before; }));
    EXPECT_TRUE(*written);
  }
}

TEST_F(NcclCalls, EveryBucketIsARangeForTheProfiler) {
  NcclHarness harness(1, {1 << 20, 4096});
  run(harness, {{all_reduce_of(DType::f32, ReduceOp::sum), {100, 28}, true, 2}});
  EXPECT_EQ(testing::fake_gpu(0).ranges().back(), "all_reduce f32 (2 tensors, 512 bytes)");
  EXPECT_EQ(testing::fake_gpu(0).open_ranges(), 0);
}

TEST(LaunchOrder, TheEarliestAgreedTimeGoesFirst) {
  LaunchOrder order;
  const auto a = order.enter({.id = 1}), b = order.enter({.id = 2});
  EXPECT_FALSE(order.first(a)) << "its time is open";
  order.settle(b, 7);
  EXPECT_FALSE(order.first(b)) << "the other may still come before";
  order.settle(a, 9);
  EXPECT_TRUE(order.first(b));
  EXPECT_FALSE(order.first(a));
  order.leave(b);
  EXPECT_TRUE(order.first(a));
  const auto later = order.enter({.id = 3});
  EXPECT_EQ(later->time, 10u) << "later than all that is known";
  order.settle(later, 10);
  EXPECT_FALSE(order.first(later));
}

/// Ranks whose groups overlap, and that hear of each other's proposals at random: any two buckets are launched in one
/// order.
TEST(LaunchOrder, IsTheSameOnAllRanks) {
  constexpr int ranks = 4, buckets = 40;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<LaunchOrder> orders(ranks);
    struct Pending {
      std::vector<int> members;
      std::vector<std::pair<int, LaunchOrder::Turn>> entered;
      std::size_t settled = 0;
      std::uint64_t latest = 0;
    };
    std::vector<Pending> all(buckets);
    std::vector<std::vector<int>> launched(ranks);
    std::vector<std::map<int, LaunchOrder::Turn>> here(ranks);
    for (Pending& bucket : all) {
      while (bucket.members.size() < 2) {
        bucket.members.clear();
        for (int rank = 0; rank < ranks; ++rank) {
          if (random() % 2 == 0) bucket.members.push_back(rank);
        }
      }
    }
    std::size_t done = 0, wanted = 0;
    for (const Pending& bucket : all) wanted += bucket.members.size();
    while (done < wanted) {
      const int number = static_cast<int>(random() % buckets);
      Pending& bucket = all[static_cast<std::size_t>(number)];
      if (bucket.entered.size() < bucket.members.size()) {  // in an order that differs from rank to rank
        const int rank = bucket.members[bucket.entered.size()];
        bucket.entered.emplace_back(rank,
                                    orders[static_cast<std::size_t>(rank)].enter({.id = static_cast<GroupId>(number)}));
      } else if (bucket.settled < bucket.members.size()) {
        if (bucket.settled == 0) {
          for (const auto& [rank, turn] : bucket.entered) bucket.latest = std::max(bucket.latest, turn->time);
        }
        const auto& [rank, turn] = bucket.entered[bucket.settled++];
        orders[static_cast<std::size_t>(rank)].settle(turn, bucket.latest);
        here[static_cast<std::size_t>(rank)].emplace(number, turn);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        auto& mine = here[static_cast<std::size_t>(rank)];
        for (auto next = mine.begin(); next != mine.end();) {
          if (!orders[static_cast<std::size_t>(rank)].first(next->second)) {
            ++next;
            continue;
          }
          orders[static_cast<std::size_t>(rank)].leave(next->second);
          launched[static_cast<std::size_t>(rank)].push_back(next->first);
          mine.erase(next);
          next = mine.begin();
          ++done;
        }
      }
    }
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) {
        const auto shared = [&](int of, int with) {
          std::vector<int> common;
          for (int number : launched[static_cast<std::size_t>(of)]) {
            if (std::ranges::count(launched[static_cast<std::size_t>(with)], number) > 0) common.push_back(number);
          }
          return common;
        };
        ASSERT_EQ(shared(a, b), shared(b, a)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace kolo
