// all_reduce of GPU tensors in two levels, on made-up placements of ranks that are threads, over stand-ins for gpus
// and NCCL.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/local/backend.h"
#include "ops/two_level/gpu_nodes_backend.h"
#include "ops/two_level/node_placement.h"
#include "tests/ops/backend_conformance.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/late_stream.h"
#include "tests/support/thread_ranks.h"

namespace kolo {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);  // that is for backends of every operation
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExactConformance);

namespace {

using testing::error_text;
using testing::run_ranks;
using testing::test_config;

/// The backends of ranks placed so, for all of them or for a group.
class Nodes {
 public:
  Nodes(std::vector<int> node_of, bool staged) {
    testing::set_stand_in_nccl({.in_progress = 60, .seed = node_of.size()});
    const auto size = static_cast<int>(node_of.size());
    auto agreeing = local_backends(size, {}), data = local_backends(size, {});
    GroupInfo world{.name = "world"};
    for (int rank = 0; rank < size; ++rank) world.ranks.push_back(rank);
    for (world.rank = 0; world.rank < size; ++world.rank) {
      const auto r = static_cast<std::size_t>(world.rank);
      auto nodes = std::make_shared<GpuNodes>();
      nodes->rank = std::make_shared<NcclRank>(*nccl_table(), cuda_gpu(world.rank), NcclTuning{64 << 10, 4 << 10});
      nodes->node_of = node_of;
      nodes->agreements = std::move(agreeing[r]);
      if (staged) nodes->staging.push_back(std::move(data[r]));
      nodes->staged = {4096, 2};
      backends_.push_back(gpu_nodes_backend(std::move(nodes), world));
    }
  }
  ~Nodes() {  // ending communicators is collective
    std::vector<std::jthread> threads;
    for (auto& backend : backends_) threads.emplace_back([&backend] { backend.reset(); });
  }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  int ranks() const { return static_cast<int>(backends_.size()); }
  void run(const std::vector<Call>& calls) {
    each([&](int rank, Backend& backend) {
      std::vector<std::unique_ptr<Job>> running, ended;  // whoever frees memory of a gpu waits for all that is on it
      const auto step_all = [&] {
        std::this_thread::yield();
        std::erase_if(running, [&](auto& job) {
          if (!job->step()) return false;
          job->verify();
          ended.push_back(std::move(job));
          return true;
        });
      };
      for (Call call : calls) {
        call.signature.device = DeviceKind::cuda;
        call.exact = false;
        EXPECT_TRUE(backend.supports(call.signature)) << to_string(call.signature);
        running.push_back(std::make_unique<Job>(call, rank, ranks(), nullptr, Device{DeviceKind::cuda, rank}));
        running.back()->start(backend);
        do step_all();
        while (running.size() > 3 ||
               std::ranges::any_of(running, [](const auto& job) { return job->holds_backend(); }));
      }
      while (!running.empty()) step_all();
    });
  }
  void each(const std::function<void(int rank, Backend& backend)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks(); ++rank)
      threads.emplace_back([&, rank] { body(rank, *backends_[static_cast<std::size_t>(rank)]); });
  }

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
};

struct Placement {
  std::vector<int> node_of;
  bool staged;
};

class GpuNodesTest : public ::testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Placed, GpuNodesTest,
                         ::testing::Values(Placement{{0, 0, 1, 1}, true}, Placement{{0, 1, 0, 1}, false},
                                           Placement{{0, 0, 0, 1}, true}, Placement{{0, 1, 1, 2}, false}),
                         [](const auto& info) {
                           std::string name = info.param.staged ? "staged" : "nccl";
                           for (int node : info.param.node_of) name += fmt::format("{}", node);
                           return name;
                         });

TEST_P(GpuNodesTest, EveryOpAndType) {
  std::vector<Call> calls;
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      Signature signature = all_reduce_of(dtype, op);
      signature.device = DeviceKind::cuda;
      if (!reducible(op, dtype)) continue;
      const bool sums = op == ReduceOp::sum || op == ReduceOp::average;
      if (op == ReduceOp::average && !is_floating_point(dtype)) continue;
      if (sums && is_floating_point(dtype)) signature.prescale = 0.5, signature.postscale = 3;
      calls.push_back({signature, {3, 0, 300}, calls.size() % 2 == 0, calls.size()});
      if (calls.size() % 4 == 0) calls.push_back({signature, {2001}, calls.size() % 3 == 0, calls.size()});
    }
  }
  Nodes(GetParam().node_of, GetParam().staged).run(calls);
}

/// Fewer elements than stripes, packed segments, tensors that are cut, and all of them in one bucket.
TEST_P(GpuNodesTest, EverySize) {
  std::vector<Call> calls;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{},
                                                                  {0},
                                                                  {1},
                                                                  {0, 0, 0},
                                                                  {1, 0, 3},
                                                                  {5000, 7, 0, 6'001, 1, 255},
                                                                  {9'000},
                                                                  std::vector<std::int64_t>(200, 99)}) {
    for (const bool in_place : {true, false}) {
      calls.push_back({all_reduce_of(DType::f32, ReduceOp::average), sizes, in_place, calls.size()});
      calls.push_back({all_reduce_of(DType::i64, ReduceOp::max), sizes, in_place, calls.size()});
    }
  }
  Nodes(GetParam().node_of, GetParam().staged).run(calls);
}

/// One rank, all of a node, all but one.
TEST_P(GpuNodesTest, AbsentRanks) {
  const NodePlacement placement = placement_of(GetParam().node_of, 0);
  std::vector<std::vector<int>> lists = placement.ranks;
  lists.push_back({1});
  lists.push_back({});
  for (int rank = 1; rank < static_cast<int>(GetParam().node_of.size()); ++rank) lists.back().push_back(rank);
  std::vector<Call> calls;
  for (const auto& absent : lists) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::bit_or}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::i64}) {
        if (!reducible(op, dtype) || (op == ReduceOp::average && dtype == DType::i64)) continue;
        Call call{all_reduce_of(dtype, op), {3003, 5}, calls.size() % 2 == 0, calls.size()};
        call.signature.divide_by_group = calls.size() % 3 == 0;
        call.absent = absent;
        calls.push_back(call);
      }
    }
  }
  Nodes(GetParam().node_of, GetParam().staged).run(calls);
}

TEST(GpuNodes, AverageOfLargeHalvesDoesNotOverflow) {
  Nodes nodes({0, 0, 0, 1}, true);
  nodes.each([](int rank, Backend& backend) {
    const Device device{DeviceKind::cuda, rank};
    auto& gpu = testing::stand_in_card(rank);
    const CardStream stream(gpu);
    const GpuBuffer memory(gpu, 2000);
    std::vector<Float16> values(1000, to_float16(40'000.0f));
    gpu.upload(memory.data(), values.data(), 2000, stream.get());
    const Tensor tensor{memory.data(), Shape{1000}, DType::f16, device};
    Signature signature = all_reduce_of(DType::f16, ReduceOp::average);
    signature.device = DeviceKind::cuda;
    signature.shape = tensor.shape;
    Bucket bucket{signature, {{tensor, tensor}}};
    bucket.ready.push_back(gpu.mark(stream.get()));
    const auto operation = backend.start(bucket);
    while (!operation->step()) std::this_thread::yield();
    gpu.download(values.data(), memory.data(), 2000, stream.get());
    for (const Float16 value : values) ASSERT_NEAR(to_float(value), 40'000, 64);
  });
}

/// Of ranks with neighbours, and of one that is alone on its node and scales for itself.
TEST(GpuNodes, EveryStreamThatWritesABucketIsWaitedFor) {
  Nodes nodes({0, 0, 1}, false);
  nodes.each([](int rank, Backend& backend) {
    for (const std::int64_t count : {100, 2000})
      testing::expect_late_stream_is_waited_for(backend, {DeviceKind::cuda, rank},
                                                all_reduce_of(DType::f32, ReduceOp::sum, 0.5), count, 1.5);
  });
}

/// When a job ends that a rank has left: no communicator of either level goes on waiting for it.
TEST(GpuNodes, LetGoOfBothLevels) {
  testing::clear_nccl_log();
  {
    Nodes nodes({0, 0, 1}, false);
    nodes.run({{all_reduce_of(DType::f32, ReduceOp::sum), {100}, true, 2}});
    nodes.each([](int, Backend& backend) { backend.abort_device_work(); });
  }
  for (const int rank : {0, 1}) {  // in its communicator: of each there are two
    const auto log = testing::nccl_log(rank);
    EXPECT_EQ(std::ranges::count(log, "abort"), 2) << rank;
    EXPECT_EQ(std::ranges::count(log, "finalize"), 0) << rank;
  }
}

TEST(GpuNodes, ServeWhatTheLevelsCombineTo) {
  Signature signature = all_reduce_of(DType::i32, ReduceOp::average);
  Nodes nodes({0, 0, 1}, true);
  nodes.each([&](int, Backend& backend) {
    Signature mine = signature;
    EXPECT_FALSE(backend.supports(mine)) << "on hosts";
    mine.device = DeviceKind::cuda;
    EXPECT_FALSE(backend.supports(mine)) << "the sum may not fit in the type";
    mine.op = ReduceOp::sum;
    EXPECT_TRUE(backend.supports(mine));
    mine.prescale = 2;
    EXPECT_FALSE(backend.supports(mine));
    mine.dtype = DType::bf16;
    EXPECT_TRUE(backend.supports(mine));
    mine.op = ReduceOp::product;
    EXPECT_FALSE(backend.supports(mine)) << "scaled twice";
    mine.kind = OpKind::all_gather;
    EXPECT_FALSE(backend.supports(mine));
  });
}

/// Sessions, with every setting and placement: results, the same bits in every run, groups, and what fails.
struct GpuNodesSession : ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  GpuNodesSession() {
    testing::set_stand_in_nccl({.in_progress = 80, .seed = 3});
    testing::clear_nccl_log();
    std::tie(config.gpu_nodes, config.fake_nodes) = GetParam();
    config.gpu_pack_bytes = 1 << 20;
    config.gpu_direct_bytes = 8 << 10;
    config.timings = true;
    config.report = [](const std::string&) {};
  }
  Config config = test_config();
};
INSTANTIATE_TEST_SUITE_P(Over, GpuNodesSession,
                         ::testing::Combine(::testing::Values("flat", "staged", "nccl"),
                                            ::testing::Values("2,2", "3,1")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) == "2,2" ? "22" : "31");
                         });

/// What a session's average of these gives: of two small tensors in a bucket, and a large one.
std::vector<float> averages(Session& session, const Group& group, int turn) {
  auto& gpu = testing::stand_in_card(session.device().index);
  const CardStream stream(gpu);
  constexpr std::array<std::int64_t, 3> sizes{700, 20'001, 33};
  std::vector<float> results;
  std::vector<GpuBuffer> memory;
  std::vector<Handle> handles;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    std::vector<float> values(static_cast<std::size_t>(sizes[t]));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = element_value<float>(5, static_cast<std::uint64_t>(session.rank()), t, i);
    memory.emplace_back(gpu, values.size() * 4);
    gpu.upload(memory.back().data(), values.data(), values.size() * 4, stream.get());
    const Tensor tensor{memory.back().data(), Shape{sizes[t]}, DType::f32, session.device()};
    handles.push_back(session.all_reduce_async(fmt::format("x{} {}", t, turn % 2), tensor,
                                               {.op = ReduceOp::average, .group = group, .ready = stream.get()}));
  }
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    handles[t].wait(stream.get());
    std::vector<float> values(static_cast<std::size_t>(sizes[t]));
    gpu.download(values.data(), memory[t].data(), values.size() * 4, stream.get());
    results.insert(results.end(), values.begin(), values.end());
  }
  session.barrier();
  return results;
}

TEST_P(GpuNodesSession, TheSameBitsInEveryRun) {
  std::vector<std::vector<float>> first(4);
  for (int run = 0; run < 3; ++run) {
    run_ranks(
        4,
        [&](Session& session) {
          const Group odd = session.new_group(std::array{0, 1, 3});
          for (int turn = 0; turn < 3; ++turn) {
            const auto found = averages(session, session.world(), turn);
            auto& kept = first[static_cast<std::size_t>(session.rank())];
            if (kept.empty()) kept = found;
            EXPECT_EQ(0, std::memcmp(found.data(), kept.data(), found.size() * 4)) << "run " << run;
            if (odd.info()->member())
              averages(session, odd, turn);
            else
              session.barrier();
          }
          EXPECT_GT(session.stats().bucket_seconds, 0);
          if (session.rank() == 0) {
            EXPECT_EQ(session.stats().staged_bytes > 0, config.gpu_nodes == "staged");
          }
        },
        config);
  }
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(first[0], first[static_cast<std::size_t>(rank)]);
  const auto log = testing::nccl_log(0);
  const bool flat = config.gpu_nodes == "flat";
  EXPECT_EQ(std::ranges::count(log, "init 4") > 0, flat) << "the communicator of all";
  EXPECT_EQ(std::ranges::any_of(log, [](const auto& line) { return line == "init 2" || line == "init 3"; }), true);
}

TEST_P(GpuNodesSession, AnErrorOfNcclIsEverybodysAndNobodyHangs) {
  if (config.gpu_nodes == "flat") return;  // gpu_session_test has that
  run_ranks(
      4,
      [&](Session& session) {
        averages(session, session.world(), 0);
        if (session.rank() == 1) testing::fail_nccl(1, NcclResult::remote_error);
        session.barrier();
        auto& gpu = testing::stand_in_card(session.device().index);
        const GpuBuffer memory(gpu, 400);
        const CardStream stream(gpu);
        gpu.clear(memory.data(), 400, stream.get());
        const Tensor tensor{memory.data(), Shape{100}, DType::f32, session.device()};
        std::string text;
        for (int turn = 0; turn < 5 && text.empty(); ++turn) {
          try {
            session.all_reduce("y", tensor, {.ready = stream.get()});
          } catch (const Error& error) {
            text = error.what();
          }
        }
        EXPECT_NE(text.find("remote process exited"), std::string::npos) << text;
      },
      config);
  testing::fail_nccl(1, NcclResult::success, 1 << 30);
  for (int gpu = 0; gpu < 4; ++gpu) testing::stand_in_card(gpu).free_what_was_left();  // by pipelines that failed
}

}  // namespace
}  // namespace kolo
