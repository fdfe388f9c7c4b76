// kolo-bench by its command line: every collective on several ranks, every task and format, and how runs end.

#include "bench/kolo_bench/options.h"
#include "tests/bench/bench_testing.h"

namespace kolo::testing {
namespace {

using namespace kolo::bench;

class BenchRun : public ::testing::Test {
 protected:
  Ended run(int ranks, const std::string& arguments, const std::string& environment = "") {
    return bench(folder_, ranks, arguments, environment);
  }

  /// Every result of the JSON is right, and there are as many as placements and sizes.
  void expect_right(const Ended& ended, const Collective& collective, int ranks) {
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto results = ended.json().at("results");
    const bool one_placement = collective.kind == OpKind::broadcast || collective.kind == OpKind::send_recv;
    EXPECT_EQ(results.size(), one_placement ? 2u : 4u) << collective.name;
    for (const auto& result : results) {
      EXPECT_EQ(result.at("op"), collective.name);
      EXPECT_EQ(result.at("wrong"), 0);
      EXPECT_EQ(result.at("compare").at(0).at("name"), "mpi");
      EXPECT_GT(result.at("compare").at(0).at("ratio").get<double>(), 0);
      EXPECT_EQ(result.at("busbw_gbs").is_null(), ranks == 1);
      const auto& t = result.at("time_us");
      EXPECT_GT(t.at("min").get<double>(), 0);
      EXPECT_LE(t.at("min").get<double>(), t.at("p50").get<double>());
      EXPECT_LE(t.at("p50").get<double>(), t.at("p95").get<double>());
      EXPECT_LE(t.at("p95").get<double>(), t.at("p99").get<double>());
      EXPECT_LE(t.at("p99").get<double>(), t.at("max").get<double>());
      // The slowest rank of each iteration takes at least as long as the rank that is slowest in all.
      EXPECT_LE(t.at("mean_of_total").get<double>(), t.at("mean").get<double>() * (1 + 1e-9));
      EXPECT_GE(t.at("mean_of_total").get<double>(), t.at("mean").get<double>() / std::max(ranks, 1) * (1 - 1e-9));
      EXPECT_TRUE(result.at("compare").at(0).at("time_us").at("mean_of_total").is_number());
      EXPECT_EQ(result.at("compare").at(0).at("peer_version").get<std::string>().find("MPI"), 5u);  // "Open MPI 4.1.4"
      EXPECT_TRUE(result.at("method").is_null() || result.at("method").is_string());
    }
  }

  TempFolder folder_;
};

class EveryCollective : public BenchRun, public ::testing::WithParamInterface<int> {};

TEST_P(EveryCollective, IsRight) {
  for (const Collective& collective : collectives()) {
    const bool alone = GetParam() == 0;
    if (collective.kind == OpKind::send_recv && alone) continue;
    for (const char* path : {"", "--ordered", "--direct"}) {
      const Ended ended =
          run(GetParam(), fmt::format("{} {} -b 3000 -e 300K -f 100 -n 3 -w 1 -c 2 --compare mpi --format json",
                                      collective.name, path));
      expect_right(ended, collective, alone ? 1 : GetParam());
      EXPECT_EQ(ended.json().at("world").at("path"), *path ? path + 2 : "session");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryCollective, ::testing::Values(0, 2, 3));  // 0: one, without a launcher

TEST_F(BenchRun, TheTable) {
  const auto ended = run(2, "all_reduce -b 8 -e 2K -f 16 -n 3");
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto rows = ended.figures();
  ASSERT_EQ(rows.size(), 3u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto words = words_of(rows[i]);
    ASSERT_EQ(words.size(), 14u);
    EXPECT_EQ(rows[i].find("  ", 116), 118u) << "nccl-tests' columns, then the method: " << rows[i];
    EXPECT_EQ(words[13], "ring-256K");
    EXPECT_EQ(words[0], std::to_string(8 << (4 * i)));
    EXPECT_EQ(words[1], std::to_string(2 << (4 * i)));
    EXPECT_EQ(words[2], "float");
    EXPECT_EQ(words[8], "0");
    EXPECT_EQ(words[12], "0");
  }
  EXPECT_NE(ended.out.find("# Avg bus bandwidth    : "), std::string::npos);
  EXPECT_NE(ended.out.find(" mpi_threads=multiple\n"), std::string::npos);
}

/// With MPI's own choice and each algorithm, for all collectives that have some; the fastest is shown.
TEST_F(BenchRun, AlgorithmsOfOpenMpi) {
  for (const int ranks : {2, 3}) {
    for (const Collective& collective : collectives()) {
      if (collective.kind == OpKind::send_recv) continue;
      const auto ended = run(ranks, fmt::format("{} --direct -b 12 -e 120K -f 100 -n 4 -w 1 --compare mpi "
                                                "--mpi-algorithms --format json",
                                                collective.name));
      ASSERT_EQ(ended.code, 0) << collective.name << ended.err;
      const auto json = ended.json();
      for (const auto& result : json.at("results")) {
        const auto& peers = result.at("compare");
        EXPECT_EQ(peers.at(0).at("name"), "mpi");
        EXPECT_EQ(peers.at(0).at("algorithm"), "default");
        EXPECT_EQ(peers.at(1).at("name"), "mpi-best");
        ASSERT_GT(peers.size(), 4u) << collective.name;
        double fastest = peers.at(0).at("time_us").at("p50").get<double>();
        for (const auto& peer : peers) {
          EXPECT_EQ(peer.value("wrong", nlohmann::json(0)).is_null(), peers.at(0).at("wrong").is_null());
          EXPECT_TRUE(peer.at("wrong").is_null() || peer.at("wrong") == 0) << collective.name << peer;
          EXPECT_TRUE(ranks == 2 || peer.at("algorithm") != "two_proc") << collective.name;
          fastest = std::min(fastest, peer.at("time_us").at("p50").get<double>());
        }
        EXPECT_EQ(peers.at(1).at("time_us").at("p50"), fastest);
        const auto chosen = std::ranges::count_if(peers, [&](const auto& peer) {
          return peer.at("algorithm") == peers.at(1).at("algorithm") && peer.at("time_us") == peers.at(1).at("time_us");
        });
        EXPECT_EQ(chosen, 2) << "itself, and the algorithm";
      }
    }
  }
  const auto table = run(2, "all_reduce --direct -b 64 -e 64 -n 4 --compare mpi --mpi-algorithms");
  EXPECT_EQ(words_of(table.figures().at(0)).size(), 13u + 2 * 4 + 1)
      << "the algorithms' own times are in the JSON only";
}

TEST_F(BenchRun, ThreadLevelsOfMpi) {
  const std::string sweep = "all_reduce -b 64 -e 256K -f 64 -n 5 --compare mpi --format json ";
  const auto level = [&](const std::string& flags, const std::string& environment = "") {
    const auto ended = run(2, sweep + flags, environment);
    EXPECT_EQ(ended.code, 0) << flags << ended.err;
    return ended.json().at("world").at("mpi_threads");
  };
  EXPECT_EQ(level("--direct"), "single");
  EXPECT_EQ(level("--direct", "KOLO_BACKEND=mpi"), "single");
  EXPECT_EQ(level("--direct", "KOLO_FAKE_NODES=1,1"), "single");
  EXPECT_EQ(level("--direct --mpi-threads funneled"), "funneled");
  EXPECT_EQ(level("--direct --mpi-threads multiple"), "multiple");
  EXPECT_EQ(level(""), "multiple");
  EXPECT_EQ(level("--mpi-threads serialized", "KOLO_BACKEND=mpi"), "serialized");
  const auto ended = run(2, sweep + "--mpi-threads funneled");
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("--mpi-threads funneled is not enough for a session ("), std::string::npos) << ended.err;
}

TEST_F(BenchRun, AllTypesAndOperations) {
  const auto ended = run(2, "reduce_scatter --direct -b 1K -e 1K -n 2 -w 0 -d all -o all --placement out --format csv");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.figures().size(), 1u + 10 * 5);
  const auto roots = run(3, "reduce -b 1K -e 1K -n 2 -w 0 -r all -d bool -o max --format osu");
  ASSERT_EQ(roots.code, 0) << roots.err;
  EXPECT_EQ(roots.figures().size(), 3u);
}

TEST_F(BenchRun, SeveralAtOnceInMemoryOfTheSession) {
  for (const char* path : {"", "--ordered", "--direct"}) {
    const auto ended = run(
        2, fmt::format("all_reduce {} -b 64K -e 64K -n 3 -m 4 -z 1 --memory session --thp --copy-limit --format json",
                       path));
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto json = ended.json();
    EXPECT_EQ(json.at("world").at("memory"), "session");
    EXPECT_EQ(json.at("world").at("huge_pages"), true);
    for (const auto& result : json.at("results")) {
      EXPECT_EQ(result.at("mode"), "isolated");
      EXPECT_EQ(result.at("wrong"), 0);
      EXPECT_GT(result.at("copy_limit_gbs").get<double>(), 0);
    }
  }
}

TEST_F(BenchRun, AcrossNodes) {
  for (const char* nodes : {"1,2", "2,1"}) {
    const auto ended =
        run(3, "all_reduce -b 30000 -e 30000 -n 3 -c 3 --format json", fmt::format("KOLO_FAKE_NODES={}", nodes));
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.json().at("world").at("nodes"), 2);
    EXPECT_EQ(ended.json().at("results").at(0).at("wrong"), 0);
  }
}

TEST_F(BenchRun, Buckets) {
  write_file(folder_ / "list.txt", "10\n2000\n# a comment\n1\n30000\n");
  for (const char* memory : {"private", "session"}) {
    const auto ended = run(2, fmt::format("all_reduce --buckets {} --memory {} -n 5 --format json",
                                          (folder_ / "list.txt").string(), memory));
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto result = ended.json().at("results").at(0);
    EXPECT_EQ(result.at("tensors"), 4);
    EXPECT_EQ(result.at("bytes"), 4 * 32011);
    EXPECT_EQ(result.at("wrong"), 0);
    ASSERT_EQ(result.at("compare").size(), 2u);
    EXPECT_EQ(result.at("compare").at(0).at("name"), "mpi_fused");
    EXPECT_EQ(result.at("compare").at(1).at("name"), "mpi_per_tensor");
    for (const auto& peer : result.at("compare")) EXPECT_EQ(peer.at("wrong"), 0);
  }
  write_file(folder_ / "list.txt", "10\nmany\n");
  const auto bad = run(2, fmt::format("all_reduce --buckets {}", (folder_ / "list.txt").string()));
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.err.find("'many'; each line takes a tensor's number of elements"), std::string::npos) << bad.err;
}

TEST_F(BenchRun, LatencyIdleAndOverlap) {
  const auto latency = run(2, "all_reduce --latency -n 50 -w 5 --compare mpi --format json");
  ASSERT_EQ(latency.code, 0) << latency.err;
  EXPECT_EQ(latency.json().at("results").at(0).at("bytes"), 4);
  EXPECT_EQ(latency.json().at("results").at(0).at("wrong"), 0);
  const auto beside = latency.json().at("results").at(1);
  EXPECT_EQ(beside.at("op"), "ordered_all_reduce");
  EXPECT_EQ(beside.at("bytes"), 4);
  EXPECT_EQ(beside.at("wrong"), 0);
  EXPECT_EQ(beside.at("compare").at(0).at("name"), "all_reduce");
  EXPECT_EQ(beside.at("compare").at(0).at("time_us"), latency.json().at("results").at(0).at("time_us"));
  EXPECT_EQ(latency.json().at("results").at(2).at("op"), "send_recv");
  const auto ordered = run(2, "all_reduce --latency --ordered -n 50 -w 5 --compare mpi --format json");
  ASSERT_EQ(ordered.code, 0) << ordered.err;
  ASSERT_EQ(ordered.json().at("results").size(), 2u);
  EXPECT_EQ(ordered.json().at("results").at(0).at("op"), "all_reduce");
  EXPECT_EQ(ordered.json().at("results").at(0).at("wrong"), 0);
  EXPECT_EQ(ordered.json().at("results").at(0).at("compare").at(0).at("name"), "mpi");
  EXPECT_EQ(ordered.json().at("results").at(1).at("op"), "send_recv");

  const auto idle = run(2, "all_reduce --idle 0.5 --format json");
  ASSERT_EQ(idle.code, 0) << idle.err;
  const auto idle_figures = idle.json();
  for (const auto& rank : idle_figures.at("idle").at("ranks")) {
    EXPECT_EQ(rank.at("mpi_calls"), 0);
    EXPECT_LT(rank.at("cpu_percent").get<double>(), 50);
  }
  const auto apart = run(2, "all_reduce --idle 0.5 --format json", "KOLO_FAKE_NODES=1,1");
  ASSERT_EQ(apart.code, 0) << apart.err;
  EXPECT_EQ(apart.json().at("idle").at("ranks").size(), 2u);

  const auto overlap = run(2, "all_reduce --overlap --ordered -b 4K -e 64K -f 16 -n 5 --compare mpi");
  ASSERT_EQ(overlap.code, 0) << overlap.err;
  EXPECT_EQ(overlap.figures().size(), 2u);
  EXPECT_NE(overlap.out.find("Overall(us)"), std::string::npos);
}

TEST_F(BenchRun, Beside) {
  const auto ended = run(2, "all_reduce --beside 4 -b 1M -e 4M -f 4 -n 3 -w 1 --format json");
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto json = ended.json();
  ASSERT_EQ(json.at("results").size(), 2u);
  for (const auto& result : json.at("results")) {
    EXPECT_EQ(result.at("mode"), "beside");
    EXPECT_EQ(result.at("wrong"), 0);
    const auto beside = result.at("beside");
    EXPECT_EQ(beside.at("bytes"), 4);
    EXPECT_GE(beside.at("count"), 3);
    EXPECT_GT(beside.at("p50_us").get<double>(), 0);
    EXPECT_LE(beside.at("p50_us").get<double>(), beside.at("p90_us").get<double>());
    EXPECT_LE(beside.at("p90_us").get<double>(), beside.at("p99_us").get<double>());
    EXPECT_DOUBLE_EQ(beside.at("percent_kept").get<double>(),
                     beside.at("alone_us").get<double>() / beside.at("with_us").get<double>() * 100);
  }
  const auto table = run(2, "all_reduce --beside 64K -b 1M -e 1M -n 2");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.figures().size(), 1u);
  EXPECT_NE(table.out.find("Small P90(us)"), std::string::npos);
}

TEST_F(BenchRun, OneRank) {
  const auto ended = run(0, "all_reduce -b 1K -e 1K -n 3");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("bus bandwidth is undefined"), std::string::npos) << ended.err;
  EXPECT_NE(ended.out.find("bus bandwidth is undefined"), std::string::npos);
  EXPECT_EQ(run(0, "send_recv").code, 1);
  EXPECT_EQ(run(0, "all_reduce --min-busbw 1").code, 1);
}

TEST_F(BenchRun, BaselinesAndFiles) {
  const std::string json = (folder_ / "old.json").string(), svg = (folder_ / "p.svg").string();
  const std::string sweep = "all_reduce -b 4K -e 16K -f 4 -n 30 --compare mpi ";
  const auto first = run(2, sweep + "-J " + json + " --plot " + svg + " --format json");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(read_file(json), first.out);
  EXPECT_TRUE(read_file(svg).starts_with("<svg"));

  EXPECT_EQ(run(2, sweep + "--baseline " + json + " --tolerance 100000%").code, 0);
  auto old = nlohmann::json::parse(read_file(json));
  for (auto& result : old["results"]) result["time_us"]["p50"] = 1e-3;
  write_file(json, old.dump());
  const auto slower = run(2, sweep + "--baseline " + json + " --tolerance 5%");
  EXPECT_EQ(slower.code, 2);
  EXPECT_NE(slower.err.find("too slow: all_reduce 4096 f32 sum, throughput: "), std::string::npos) << slower.err;
  EXPECT_EQ(run(0, sweep + "--baseline " + json).code, 1) << "another number of ranks";
  const auto ordered = run(2, sweep + "--ordered --baseline " + json);
  EXPECT_EQ(ordered.code, 1);
  EXPECT_NE(ordered.err.find("private memory, ordered; use the same --memory, --direct and --ordered"),
            std::string::npos)
      << ordered.err;

  EXPECT_EQ(run(2, sweep + "--min-busbw 1e-9").code, 0);
  EXPECT_EQ(run(2, sweep + "--min-busbw 1e6").code, 2);
  const auto nowhere = run(2, sweep + "-J " + (folder_ / "no/such").string());
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_TRUE(nowhere.figures().empty()) << "before anything is measured";
}

TEST_F(BenchRun, Refusals) {
  const auto expect = [&](int ranks, const std::string& arguments, const std::string& text,
                          const std::string& environment = "") {
    const auto ended = run(ranks, arguments, environment);
    EXPECT_EQ(ended.code, 1) << arguments;
    EXPECT_EQ(ended.out, "") << arguments;
    EXPECT_NE(ended.err.find("kolo-bench: " + text), std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find("kolo-bench: ", ended.err.find("kolo-bench: ") + 1), std::string::npos)
        << "said once: " << ended.err;
  };
  expect(2, "broadcast -r 2", "-r is 2, and the ranks are 0 to 1");
  expect(2, "all_reduce -b 4000G", "the tensors take ");
  expect(0, "all_reduce -d f8e4m3", "-d f8e4m3 is an 8-bit float");
  expect(0, "all_reduce -b 8 -e 8 -o avg --compare mpi", "--compare mpi: MPI has no operation 'avg'");
  expect(0, "all_reduce -b 8 -e 8 -d half --compare mpi",
         "--compare mpi: MPI has no type that it could add up for f16");
  expect(0, "all_reduce -b 6000000T -m 10000", "the sizes add up to more bytes than can be addressed");
  expect(0, "all_reduce", "KOLO_FUSION_BYTES is 'x'", "KOLO_FUSION_BYTES=x");
}

TEST_F(BenchRun, FlagsThatDifferBetweenRanks) {
  write_file(folder_ / "each", fmt::format("exec '{}' all_reduce -n $((3 + OMPI_COMM_WORLD_RANK))", KOLO_BENCH));
  const std::string command =
      fmt::format("'{}' --oversubscribe -np 2 bash {} 2>&1; true", KOLO_MPIRUN, (folder_ / "each").string());
  write_file(folder_ / "both", command);
  ASSERT_EQ(std::system(fmt::format("timeout 60 bash '{}' >'{}' </dev/null", (folder_ / "both").string(),
                                    (folder_ / "out").string())
                            .c_str()),
            0);
  EXPECT_NE(read_file(folder_ / "out").find("the ranks have different values of -n (rank 0: 3; rank 1: 4)"),
            std::string::npos)
      << read_file(folder_ / "out");
}

TEST_F(BenchRun, ATimeOut) {
  const auto ended = run(2, "all_reduce -b 16M -n 10000000 -T 1");
  EXPECT_EQ(ended.code, bench::exit_timeout) << ended.err;
  EXPECT_NE(ended.err.find("was at all_reduce 16777216 f32 sum for more than 1 s (-T)"), std::string::npos)
      << ended.err;
}

/// The thread that measures waits for ever, and the rank that it waits for cannot end itself.
TEST_F(BenchRun, AFrozenRankEndsTheJob) {
  write_file(folder_ / "each", fmt::format("if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (sleep 1; kill -STOP $$) & fi\n"
                                           "exec '{}' all_reduce -b 4 -n 10000000 -T 2 2>&1",
                                           KOLO_BENCH));
  const auto out = (folder_ / "out").string();
  const int status = std::system(fmt::format("timeout 60 '{}' --oversubscribe -np 2 bash '{}' >'{}' </dev/null",
                                             KOLO_MPIRUN, (folder_ / "each").string(), out)
                                     .c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), exit_timeout) << read_file(out);
  EXPECT_NE(read_file(out).find("rank 0 (pid "), std::string::npos) << read_file(out);
}

#ifdef KOLO_FLAWED_MPI
TEST_F(BenchRun, WrongResults) {
  const std::string flawed = std::string("KOLO_BACKEND=mpi LD_PRELOAD='") + KOLO_FLAWED_MPI + "'";
  const auto ended = run(2, "broadcast -b 4K -n 3 --format json", flawed);
  EXPECT_EQ(ended.code, exit_wrong) << ended.err;
  EXPECT_GT(ended.json().at("results").at(0).at("wrong"), 0);
  EXPECT_EQ(run(2, "broadcast -b 4K -n 3 -c 0", flawed).code, exit_ok) << "nobody looked";
}

TEST_F(BenchRun, AnotherMpi) {
  const std::string other = std::string("FLAWED_VERSION='MPICH Version:\t4.0.2' LD_PRELOAD='") + KOLO_FLAWED_MPI + "'";
  const auto ended = run(2, "all_reduce --direct -b 8 -e 8 --compare mpi --mpi-algorithms", other);
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("kolo-bench: --mpi-algorithms chooses among Open MPI's, and this is MPICH 4.0.2; "),
            std::string::npos)
      << ended.err;
  EXPECT_NE(run(2, "all_reduce --direct -b 8 -e 8 -n 2 --compare mpi", other).out.find("# compared with MPICH 4.0.2\n"),
            std::string::npos);
}

/// MPI that ends a process when another thread than the first calls it: a session's does, now and then.
TEST_F(BenchRun, OneThreadCallsMpi) {
  const std::string strict = std::string(" FLAWED_THREADS=1 LD_PRELOAD='") + KOLO_FLAWED_MPI + "'";
  for (const char* how : {"KOLO_BACKEND=mpi", "KOLO_FAKE_NODES=1,2", "KOLO_BACKEND=auto"})
    EXPECT_EQ(run(3, "all_reduce --direct -b 64 -e 64K -f 32 -n 20 --compare mpi", how + strict).code, 0) << how;
  EXPECT_NE(run(2, "all_reduce --idle 3", "KOLO_BACKEND=mpi" + strict).code, 0) << "and a session needs more";
}

/// Messages: two to warm up, three that are timed, one that is only checked.
TEST_F(BenchRun, WrongResultsOfTimedRunsOnly) {
  const std::string flawed = std::string("KOLO_BACKEND=mpi LD_PRELOAD='") + KOLO_FLAWED_MPI + "' FLAWED_MESSAGE=";
  const std::string once = " -b 8K -e 8K -n 3 -w 2 --placement in --format json";
  for (const char* what : {"broadcast --direct", "broadcast", "all_gather --direct"}) {
    const auto ended = run(2, what + once, flawed + "5");
    EXPECT_EQ(ended.code, exit_wrong) << what << ended.err;
    EXPECT_GT(ended.json().at("results").at(0).at("wrong"), 0) << what;
    EXPECT_NE(ended.err.find("wrong in the last timed iteration; on rank "), std::string::npos) << what << ended.err;
    EXPECT_EQ(run(2, what + once + " -c 0", flawed + "5").code, exit_ok) << what << ", and nobody looked";
  }
  EXPECT_EQ(run(2, "broadcast --direct" + once, flawed + "7").code, exit_ok) << "there is no such message";
  const auto unlike = run(2, "broadcast --direct" + once, flawed + "6");
  EXPECT_EQ(unlike.code, exit_wrong);
  EXPECT_EQ(unlike.err.find("in the last timed iteration"), std::string::npos) << unlike.err;
}
#endif

TEST_F(BenchRun, HelpNeedsNothingElse) {
  const auto help = run(2, "--help --no-such", "KOLO_BACKEND=nosuch");
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"--minbytes", "--compare", "busbw", "algbw", "KOLO_BACKEND", "Exit codes"}) {
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  }
  EXPECT_TRUE(run(0, "--version").out.starts_with("kolo-bench "));
}

}  // namespace
}  // namespace kolo::testing
