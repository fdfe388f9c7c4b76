// kolo-bench with buffers on GPUs, over fakes: raw NCCL's calls of every collective, for ranks that are threads;
// then the program by its command line.

#include <atomic>
#include <thread>

#include "bench/kolo_bench/measure/buffer_placement.h"
#include "bench/kolo_bench/peers/raw_nccl.h"
#include "tests/bench/bench_testing.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"

namespace kolo::testing {
namespace {

using namespace kolo::bench;

/// Makes a communicator as NCCL's own function does that blocks: it is complete when this returns.
std::atomic<int> blocking_communicators{0};
NcclResult fake_init_rank(NcclComm* comm, int ranks, NcclId id, int rank) {
  ++blocking_communicators;
  NcclResult state = kolo::nccl_table()->init(comm, ranks, id, rank, 0, false);
  while (state == NcclResult::in_progress) (void)kolo::nccl_table()->async_error(*comm, &state);
  return state;
}

/// What rank `rank` finds wrong after NCCL did such work.
std::int64_t wrong_after(const Signature& signature, bool in_place, const NcclId& id, int rank, int ranks,
                         NcclInitRank init) {
  Gpu& gpu = cuda_gpu(rank);
  RawNccl nccl(*kolo::nccl_table(), gpu, id, rank, ranks, init);
  const auto place = gpu_placement(gpu, 1);
  constexpr std::int64_t bytes = 6000;
  const Storage in = place->storage(2 * bytes), out = place->storage(2 * bytes);
  const Area area{in.data(), out.data(), bytes, bytes, 2, place->device()};
  const Work work = make_work(signature, bytes, in_place, rank, ranks, area);
  const Checker checker(signature, rank, ranks, ValueKind::exact, 5);
  place->fill(checker, work);
  nccl.candidate(work)->run();
  return place->wrong(checker, work, nullptr);
}

void expect_right_calls(NcclInitRank init) {
  for (const Collective& collective : collectives()) {
    for (const bool in_place : {false, true}) {
      const Signature signature{.kind = collective.kind, .root = collective.kind == OpKind::send_recv ? 0 : 1};
      const bool has_placement = in_place ? collective.kind != OpKind::send_recv : collective.kind != OpKind::broadcast;
      if (!has_placement || no_nccl_call(make_work(signature, 64, in_place, 0, 1, {}))) continue;
      NcclId id{};
      const GpuGuard selected(cuda_gpu(0));
      ASSERT_EQ(kolo::nccl_table()->get_unique_id(&id), NcclResult::success);
      constexpr int ranks = 3;
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          EXPECT_EQ(wrong_after(signature, in_place, id, rank, ranks, init), 0)
              << collective.name << (in_place ? " in place" : "");
        });
      }
    }
  }
}

TEST(RawNcclCalls, AreRightOnEveryRank) {
  EXPECT_EQ(nccl_init_rank(), nullptr) << "that of a library, where a stand-in is used";
  set_fake_nccl({.in_progress = 80, .seed = 7});
  expect_right_calls(nullptr);
  set_fake_nccl({});
  const int before = blocking_communicators;
  expect_right_calls(fake_init_rank);
  EXPECT_GT(blocking_communicators, before);
}

TEST(RawNcclCalls, WhatCannotBeCompared) {
  const auto reason = [](Signature signature, bool in_place = false) {
    return no_nccl_call(make_work(signature, 64, in_place, 0, 1, {})).value_or("");
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.op = ReduceOp::bit_and, .dtype = DType::i32}), "NCCL has no bit_and");
  EXPECT_EQ(reason({.dtype = DType::i16}), "NCCL reduces no i16");
  EXPECT_EQ(reason({.op = ReduceOp::average, .dtype = DType::i32}), "NCCL rounds averages of integers its own way");
  EXPECT_EQ(reason({.kind = OpKind::all_gather, .dtype = DType::boolean}), "");  // bytes
  EXPECT_EQ(reason({.kind = OpKind::all_to_all}, true), "NCCL has no all_to_all in place");
}

TEST(GpuPlacement, FindsEveryWrongElement) {
  const auto place = gpu_placement(cuda_gpu(2), 1);
  const Storage in = place->storage(400), out = place->storage(400);
  const Signature signature{};
  for (const bool in_place : {false, true}) {
    const Work work = make_work(signature, 400, in_place, 0, 1, {in.data(), out.data(), 400, 400, 1, place->device()});
    const Checker checker(signature, 0, 1, ValueKind::exact, 1);
    place->fill(checker, work);
    EXPECT_EQ(place->wrong(checker, work, nullptr), in_place ? 0 : 100) << "a sum over one rank is its input";
  }
}

class BenchOnGpu : public ::testing::Test {
 protected:
  Ended run(int ranks, const std::string& arguments, const std::string& environment = "") {
    const Ended ended = bench(folder_, ranks, arguments, environment, KOLO_BENCH_FAKE);
    EXPECT_EQ((ended.out + ended.err).find("Failure"), std::string::npos)
        << ended.out << ended.err;  // the fakes complain
    return ended;
  }
  TempFolder folder_;
};

TEST_F(BenchOnGpu, AgainstNccl) {
  for (const char* how : {"", "--ordered", "--direct", "--memory session"}) {
    const auto ended =
        run(0, fmt::format("all_reduce {} --device cuda -b 8 -e 8K -f 32 -n 3 -w 1 --compare nccl --format json", how),
            "KOLO_NCCL_ALGO=ring NCCL_ALGO=allreduce:ring");
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto json = ended.json();
    EXPECT_EQ(json.at("world").at("device"), "cuda");
    EXPECT_EQ(json.at("world").at("backend"), "nccl");
    EXPECT_EQ(json.at("world").at("gpus").at(0).at("name"), "fake");
    EXPECT_EQ(json.at("world").at("nccl").at("algorithm"), "allreduce:ring");
    ASSERT_EQ(json.at("results").size(), 6u);
    for (const auto& result : json.at("results")) {
      EXPECT_EQ(result.at("wrong"), 0);
      EXPECT_EQ(result.at("compare").at(0).at("name"), "nccl");
      EXPECT_EQ(result.at("compare").at(0).at("peer_version"), "NCCL 2.28.9");
      EXPECT_EQ(result.at("compare").at(0).at("wrong"), 0);
    }
  }
}

TEST_F(BenchOnGpu, EveryFormatNamesTheGpu) {
  const auto csv = run(0, "all_reduce --device cuda -b 64 -e 64 -n 2 -w 1 --format csv");
  ASSERT_EQ(csv.code, 0) << csv.err;
  EXPECT_NE(csv.out.find(",gpu,"), std::string::npos) << csv.out;
  EXPECT_NE(csv.out.find(",\"fake [0000:00:00.0]\","), std::string::npos) << csv.out;
  const auto osu = run(0, "all_reduce --device cuda -b 64 -e 64 -n 2 -w 1 --format osu");
  ASSERT_EQ(osu.code, 0) << osu.err;
  EXPECT_NE(osu.out.find(": GPU 0 [0000:00:00.0] fake\n"), std::string::npos) << osu.out;
  EXPECT_NE(osu.out.find("# Peak GPU memory (MiB) : "), std::string::npos) << osu.out;
  const auto host = run(0, "all_reduce -b 64 -e 64 -n 2 -w 1 --format csv");
  EXPECT_EQ(host.out.find("gpu"), std::string::npos) << host.out;
}

TEST_F(BenchOnGpu, EveryCollectiveStaged) {
  for (const Collective& collective : collectives()) {
    for (const char* path : {"", "--ordered", "--direct"}) {
      if (collective.kind == OpKind::send_recv && path == std::string("--ordered")) continue;
      const auto ended =
          run(2, fmt::format("{} {} --device cuda -b 3000 -e 3000 -n 2 -w 1 -c 2 --format json", collective.name, path),
              "KOLO_GPU_BACKEND=staged");
      ASSERT_EQ(ended.code, 0) << collective.name << ended.err;
      const auto report = ended.json();
      for (const auto& result : report.at("results")) EXPECT_EQ(result.at("wrong"), 0) << collective.name;
    }
  }
}

TEST_F(BenchOnGpu, OtherTasks) {
  write_file(folder_ / "list", "7\n100\n3000\n");
  const std::string list = (folder_ / "list").string();
  for (const char* const task : {"--latency -n 4 -w 1 --compare nccl", "--overlap -b 1K -e 1K -n 4 -w 1 --compare nccl",
                                 "--beside 4 -b 1M -e 1M -n 3 -w 1"})
    EXPECT_EQ(run(0, std::string("all_reduce --device cuda ") + task).code, 0) << task;
  const auto step = run(0, "all_reduce --device cuda -n 3 --compare nccl --format json --buckets " + list);
  ASSERT_EQ(step.code, 0) << step.err;
  const auto compared = step.json().at("results").at(0).at("compare");
  EXPECT_EQ(compared.at(0).at("name"), "nccl_one_group");
  EXPECT_EQ(compared.at(1).at("name"), "nccl_per_tensor");
  for (const auto& peer : compared) EXPECT_EQ(peer.at("wrong"), 0);
  EXPECT_GT(step.json().at("world").at("gpus").at(0).at("peak_bytes").get<std::int64_t>(), 0);
  const auto pack = run(0, "all_reduce --device cuda --pack -n 2 --format json --buckets " + list);
  ASSERT_EQ(pack.code, 0) << pack.err;
  EXPECT_EQ(pack.json().at("pack").at(0).at("tensors"), 3);
  EXPECT_EQ(pack.json().at("pack").at(0).at("bytes"), 4 * 3107);
  EXPECT_EQ(pack.json().at("pack").at(0).at("wrong"), 0);
  EXPECT_GT(pack.json().at("pack").at(0).at("pack_share").get<double>(), 0);
}

TEST_F(BenchOnGpu, TheTableNamesGpuAndAlgorithm) {
  const auto ended = run(0, "all_reduce --device cuda -b 8 -e 8 -n 2");
  EXPECT_NE(ended.out.find("device  0 [0000:00:00.0] fake"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("# NCCL 2.28.9, algorithm auto"), std::string::npos) << ended.out;
}

TEST_F(BenchOnGpu, Refusals) {
  EXPECT_EQ(run(0, "all_reduce --device cuda -b 8 -e 8", "KOLO_FAKE_NODES=1").err,
            "kolo-bench: KOLO_FAKE_NODES does not go with --device cuda (pretended nodes have no GPUs of their own); "
            "unset it\n");
  EXPECT_NE(bench_problem("send_recv --device cuda --ordered").find("are for host memory"), std::string::npos);
  EXPECT_NE(bench_problem("all_reduce --compare nccl").find("add --device cuda"), std::string::npos);
  EXPECT_NE(bench_problem("all_reduce --pack").find("add --device cuda"), std::string::npos);
  for (const char* flag : {"--compare mpi", "--thp", "--copy-limit"})
    EXPECT_NE(bench_problem(std::string("all_reduce --device cuda ") + flag).find("does not go with --device cuda"),
              std::string::npos);
  for (const char* flags : {"--idle 1", "--pack --compare nccl", "--pack --latency"})
    EXPECT_NE(bench_problem(std::string("all_reduce --device cuda ") + flags).find("do not go together"),
              std::string::npos);
  EXPECT_EQ(bench_problem("all_reduce --device cuda --pack --buckets llama"), "no error");
  EXPECT_NE(bench_problem("all_reduce --device gpu").find("one of cpu, cuda"), std::string::npos);
}

}  // namespace
}  // namespace kolo::testing
