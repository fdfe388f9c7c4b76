// What kolo-bench computes from times, and how it is written: in closed form.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/files.h"
#include "bench/kolo_bench/measure/bucket_list.h"
#include "bench/kolo_bench/measure/buffer_placement.h"
#include "bench/kolo_bench/report/baseline.h"
#include "bench/kolo_bench/report/table.h"
#include "tests/bench/bench_testing.h"
#include "tests/support/environment.h"

namespace kolo::testing {
namespace {

using namespace kolo::bench;

TEST(BenchFigures, BusBandwidthOverAlgorithmBandwidth) {
  for (const int n : {2, 3, 4, 8, 64}) {
    const double share = (n - 1.0) / n;
    EXPECT_DOUBLE_EQ(*bus_factor(OpKind::all_reduce, n), 2 * share);
    for (const OpKind kind :
         {OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather, OpKind::scatter}) {
      EXPECT_DOUBLE_EQ(*bus_factor(kind, n), share);
    }
    for (const OpKind kind : {OpKind::broadcast, OpKind::reduce, OpKind::send_recv}) EXPECT_EQ(*bus_factor(kind, n), 1);
  }
  for (const Collective& row : collectives()) EXPECT_EQ(bus_factor(row.kind, 1), std::nullopt);
}

TEST(BenchFigures, SizesAreThoseOfTheLargerTensor) {
  const auto expect = [](OpKind kind, std::int64_t bytes, DType dtype, int ranks, Extent want) {
    const Extent got = extent_of(kind, bytes, dtype, ranks);
    EXPECT_EQ(got.in, want.in) << to_string(kind);
    EXPECT_EQ(got.out, want.out) << to_string(kind);
    EXPECT_EQ(got.count, want.count) << to_string(kind);
    EXPECT_EQ(got.bytes, want.bytes) << to_string(kind);
  };
  expect(OpKind::all_reduce, 1001, DType::f32, 3, {250, 250, 250, 1000});
  expect(OpKind::send_recv, 7, DType::i8, 3, {7, 7, 7, 7});
  expect(OpKind::all_gather, 1024, DType::f32, 4, {64, 256, 64, 1024});
  expect(OpKind::gather, 1024, DType::f32, 4, {64, 256, 64, 1024});
  expect(OpKind::reduce_scatter, 1024, DType::f32, 4, {256, 64, 64, 1024});
  expect(OpKind::scatter, 1024, DType::f64, 4, {128, 32, 32, 1024});
  expect(OpKind::all_to_all, 1024, DType::f32, 4, {256, 256, 64, 1024});
  expect(OpKind::all_gather, 1024, DType::f32, 3, {84, 252, 84, 1008});  // blocks of a multiple of 16 bytes
  expect(OpKind::all_gather, 24, DType::f32, 3, {2, 6, 2, 24});          // smaller ones of whole elements
  expect(OpKind::all_gather, 8, DType::f32, 3, {0, 0, 0, 0});
  expect(OpKind::all_reduce, std::int64_t{6} << 30, DType::i8, 2,
         {std::int64_t{6} << 30, std::int64_t{6} << 30, std::int64_t{6} << 30, std::int64_t{6} << 30});
}

TEST(BenchFigures, Percentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Percentiles p = percentiles(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p95, 95);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.min, 0);
  EXPECT_EQ(p.max, 100);
  EXPECT_EQ(p.mean, 50);
  EXPECT_EQ(percentiles({3}).p99, 3);
  EXPECT_EQ(percentiles({1, 2}).p50, 1);
  EXPECT_EQ(percentiles({1, 2}).p95, 2);
  EXPECT_EQ(percentiles({5, 1, 4, 2, 3}).p99, 5);
}

TEST(BenchFigures, Overlap) {
  EXPECT_DOUBLE_EQ((Overlap{200, 100, 100}.percent()), 0);
  EXPECT_DOUBLE_EQ((Overlap{100, 100, 100}.percent()), 100);
  EXPECT_DOUBLE_EQ((Overlap{150, 100, 100}.percent()), 50);
  EXPECT_DOUBLE_EQ((Overlap{300, 100, 100}.percent()), 0);
}

TEST(BenchFigures, BytesThatCannotBeCounted) {
  EXPECT_EQ(checked_product(3, 4), 12u);
  EXPECT_EQ(checked_sum(3, 4), 7u);
  EXPECT_THROW(checked_product(std::size_t{1} << 40, std::size_t{1} << 40), UsageError);
  EXPECT_THROW(checked_sum(std::size_t{1} << 62, std::size_t{1} << 62), UsageError);
}

Result some_result(std::int64_t bytes, bool in_place, double us) {
  Result result;
  result.op = "all_reduce";
  result.bytes = bytes;
  result.count = bytes / 4;
  result.redop = ReduceOp::sum;
  result.in_place = in_place;
  result.mode = "throughput";
  result.iterations = 20;
  result.time_us = {us, us + 1, us + 2, us - 1, us + 3, us};
  result.wrong = 0;
  fill_in_bandwidth(result, OpKind::all_reduce, 4);
  return result;
}

WorldInfo some_world() {
  WorldInfo world;
  world.collective = "all_reduce";
  world.ranks = 2;
  world.hosts = {"one", "two"};
  world.pids = {11, 12};
  world.devices.resize(2);
  return world;
}

TEST(BenchFigures, Bandwidth) {
  const Result result = some_result(1 << 20, false, 100);
  EXPECT_DOUBLE_EQ(result.algbw_gbs, 10.48576);
  EXPECT_DOUBLE_EQ(*result.busbw_gbs, 10.48576 * 1.5);
}

TEST(BenchFigures, TheTableIsThatOfNcclTests) {
  const auto table = nccl_table(bench_options("all_reduce -b 32M"), {});
  Result out = some_result(33554432, false, 1811.2), in = some_result(33554432, true, 12345.6);
  in.wrong = std::nullopt;
  // nccl-tests: "%12li  %12li  %8s  %6s  %6s", then twice "  %7s  %6s  %6s  %6g"
  EXPECT_EQ(table->row({out, in}),
            "    33554432       8388608     float     sum      -1  1811.20   18.53   27.79       0  12345.6    2.72    "
            "4.08     N/A         -\n");
  out.method = "mapped";
  in.method = "ring";
  EXPECT_EQ(words_of(table->row({out, in})).back(), "mapped/ring");
  in.method = "mapped";
  EXPECT_EQ(words_of(table->row({out, in})).back(), "mapped");
  EXPECT_EQ(table->row({in}),
            "    33554432       8388608     float     sum      -1      N/A     N/A     N/A     N/A  12345.6    2.72    "
            "4.08     N/A    mapped\n");
  in.op = "ordered_all_reduce";  // said once
  EXPECT_TRUE(table->row({in}).starts_with("# ordered_all_reduce\n  "));
  EXPECT_TRUE(table->row({in}).starts_with("    33554432 "));
  const std::string header = table->header(some_world());
  for (std::string line; const char c : header + "\n") {
    if (c != '\n') {
      line += c;
      continue;
    }
    EXPECT_TRUE(line.empty() || line.starts_with('#')) << line;
    line.clear();
  }
  EXPECT_NE(
      header.find(
          "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw  "
          " busbw  #wrong    method\n"),
      header.npos);
  EXPECT_NE(header.find("# Collective test starting: all_reduce_perf\n"), header.npos);
  Report report{some_world(), {out, out}};
  const std::string footer = table->footer(report);
  EXPECT_NE(footer.find("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 27.7"), footer.npos) << footer;
}

TEST(BenchFigures, PeersComeBehind) {
  Options options = bench_options("all_reduce --compare mpi --copy-limit");
  const auto table = nccl_table(options, {"mpi"});
  Result out = some_result(1024, false, 10);
  out.compare.push_back({"mpi", percentiles({25}), 2.5});
  out.copy_limit_gbs = 12;
  const auto words = words_of(table->row({out}));
  EXPECT_EQ(words,
            (std::vector<std::string>{"1024", "256", "float", "sum",   "-1",   "10.00", "0.10", "0.15", "0",   "N/A",
                                      "N/A",  "N/A", "N/A",   "25.00", "2.50", "12.00", "N/A",  "N/A",  "N/A", "-"}));
  const auto osu = words_of(osu_table(options, {"mpi"})->row({out}));
  EXPECT_EQ(osu, (std::vector<std::string>{"1024", "10.00", "9.00", "13.00", "20", "10.00", "11.00", "12.00", "Pass",
                                           "25.00", "2.50"}));
  const auto csv = csv_table(options, {"mpi"});
  const std::string head = csv->header(some_world()), line = csv->row({out, some_result(1024, true, 10)});
  EXPECT_EQ(std::ranges::count(line, ','), 2 * std::ranges::count(head, ','));
  EXPECT_TRUE(head.ends_with(",mean_of_total_us,mpi_mean_of_total_us,method\n")) << head;
  out.mean_of_total_us = 9.5;
  out.compare[0].mean_of_total_us = 24;
  out.method = "ring";
  EXPECT_TRUE(csv->row({out}).ends_with(",9.5,24,ring\n")) << csv->row({out});
  EXPECT_TRUE(line.starts_with("all_reduce,1024,256,f32,sum,,false,throughput,2,"));
}

TEST(BenchFigures, Json) {
  Result out = some_result(1024, false, 10);
  out.compare.push_back({"mpi", percentiles({25}), 2.5, 0});
  out.mean_of_total_us = 9.5;
  out.method = "mapped";
  out.compare[0].mean_of_total_us = 24;
  out.compare[0].version = "Open MPI 4.1.4";
  Result alone = some_result(2048, true, 10);
  alone.busbw_gbs.reset();
  alone.wrong.reset();
  const auto json = nlohmann::json::parse(to_json({some_world(), {out, alone}}));
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("world").at("ranks"), 2);
  const auto& first = json.at("results").at(0);
  EXPECT_EQ(first.at("op"), "all_reduce");
  EXPECT_EQ(first.at("bytes"), 1024);
  EXPECT_EQ(first.at("dtype"), "f32");
  EXPECT_EQ(first.at("in_place"), false);
  EXPECT_EQ(first.at("mode"), "throughput");
  for (const char* name : {"p50", "p95", "p99", "min", "max"})
    EXPECT_TRUE(first.at("time_us").at(name).is_number()) << name;
  EXPECT_TRUE(first.at("algbw_gbs").is_number());
  EXPECT_TRUE(first.at("busbw_gbs").is_number());
  EXPECT_EQ(first.at("wrong"), 0);
  EXPECT_EQ(first.at("compare").at(0).at("name"), "mpi");
  EXPECT_EQ(first.at("compare").at(0).at("ratio"), 2.5);
  EXPECT_EQ(first.at("compare").at(0).at("time_us").at("p50"), 25);
  EXPECT_EQ(first.at("time_us").at("mean_of_total"), 9.5);
  EXPECT_EQ(first.at("method"), "mapped");
  EXPECT_EQ(first.at("compare").at(0).at("time_us").at("mean_of_total"), 24);
  EXPECT_EQ(first.at("compare").at(0).at("peer_version"), "Open MPI 4.1.4");
  EXPECT_TRUE(json.at("results").at(1).at("method").is_null());
  EXPECT_TRUE(json.at("results").at(1).at("busbw_gbs").is_null());
  EXPECT_TRUE(json.at("results").at(1).at("wrong").is_null());
}

TEST(BenchFigures, TheBestPeerIsNoWrongOne) {
  Result result = some_result(1024, false, 10);
  result.compare = {
      {"mpi", percentiles({25}), 2.5, 0}, {"mpi-a", percentiles({20}), 2, 0}, {"mpi-b", percentiles({15}), 1.5, 3}};
  for (PeerResult& peer : result.compare) peer.algorithm = peer.name == "mpi-a" ? "a" : "another";
  add_best_peer(result, "mpi-best");
  ASSERT_EQ(result.compare.size(), 4u);
  EXPECT_EQ(result.compare[0].name, "mpi");
  EXPECT_EQ(result.compare[1].name, "mpi-best");
  EXPECT_EQ(result.compare[1].algorithm, "a");
  EXPECT_EQ(result.compare[1].ratio, 2);
  EXPECT_EQ(result.compare[2].name, "mpi-a");
  const std::string svg = plot({some_world(), {result}});
  EXPECT_NE(svg.find("mpi-best"), svg.npos);
  EXPECT_EQ(svg.find("mpi-a"), svg.npos) << "a way of MPI's that is not the best";
}

TEST(BenchFigures, Baselines) {
  const TempFolder folder;
  const std::string path = (folder / "old.json").string();
  cli::write_whole(path, to_json({some_world(), {some_result(1024, false, 10), some_result(1024, true, 20)}}));
  const Baseline baseline(path);
  const auto [path_of_world, memory] = std::pair(some_world().path, some_world().memory);
  EXPECT_NO_THROW(baseline.check_world(2, path_of_world, memory));
  EXPECT_THROW(baseline.check_world(3, path_of_world, memory), UsageError);
  EXPECT_THROW(baseline.check_world(2, "another", memory), UsageError);
  EXPECT_THROW(baseline.check_world(2, path_of_world, "another"), UsageError);
  EXPECT_EQ(baseline.lacks({some_result(1024, false, 10.4), some_result(4096, false, 99)}), 1u);
  EXPECT_TRUE(baseline.slower({some_result(1024, false, 10.4), some_result(4096, false, 99)}, 0.05).empty());
  const auto lines = baseline.slower({some_result(1024, false, 10.6), some_result(1024, true, 19)}, 0.05);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "all_reduce 1024 f32 sum, throughput: 10.60 us, and 10.00 us in the baseline (+6.0 %, 5 % are tolerated)");
  EXPECT_THROW(baseline.slower({some_result(4096, false, 99)}, 0.05), UsageError);
  for (const char* text : {"", "{}", "[1]", R"({"schema":2,"world":{"ranks":2},"results":[]})",
                           R"({"schema":1,"world":{"ranks":2},"results":[{}]})"}) {
    write_file(path, text);
    EXPECT_THROW(Baseline{path}, UsageError) << text;
  }
  EXPECT_THROW(Baseline{(folder / "none").string()}, UsageError);
}

TEST(BenchFigures, LeastBusBandwidth) {
  const std::vector<Result> results{some_result(1024, false, 10), some_result(1 << 20, false, 100),
                                    some_result(1024, true, 10)};
  EXPECT_TRUE(below_busbw(results, 0.1).empty());
  EXPECT_EQ(below_busbw(results, 1).size(), 1u);  // in place
  EXPECT_EQ(below_busbw(results, 100).size(), 2u);
}

TEST(BenchFigures, ListsOfGradients) {
  EXPECT_EQ(bucket_list("resnet50").elements.size(), 161u);
  EXPECT_EQ(bucket_list("resnet50").total(), 25557032);
  EXPECT_EQ(bucket_list("llama").elements.size(), 110u);
  const TempFolder folder;
  const std::string path = (folder / "list.txt").string();
  write_file(path, "# three\n\n 5 \r\n7\n\t1\n");
  EXPECT_EQ(bucket_list(path).elements, (std::vector<std::int64_t>{5, 7, 1}));
  EXPECT_EQ(bucket_list(path).name, "list.txt");
  for (const char* text :
       {"", "# none\n", "5\nx\n", "0\n", "-1\n", "1.5\n", "5 6\n", "99999999999999999999\n", "1099511627776\n1\n"}) {
    write_file(path, text);
    EXPECT_THROW(bucket_list(path), UsageError) << text;
  }
  EXPECT_THROW(bucket_list("resnet"), UsageError);
  EXPECT_THROW(bucket_list(folder.path().string()), UsageError);
  for (const char* name : {"resnet50", "llama"}) {
    if (shared_dir().empty()) continue;
    EXPECT_EQ(bucket_list((shared_dir() / "reference/buckets" / (std::string(name) + ".txt")).string()).elements,
              bucket_list(name).elements);
  }
}

TEST(BenchFigures, FilesAppearWhole) {
  const TempFolder folder;
  const std::string path = (folder / "out").string();
  cli::write_whole(path, "one");
  cli::write_whole(path, "two");
  const std::string link = (folder / "link").string();
  std::filesystem::create_symlink(path, link);
  cli::write_whole(link, "three");  // goes where the link points to
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(path), "three");
  EXPECT_TRUE(cli::same_file(path, link));
  EXPECT_TRUE(cli::same_file((folder / "new").string(), (folder / "./new").string()));
  EXPECT_FALSE(cli::same_file(path, (folder / "new").string()));
  cli::write_whole(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);  // it and the link
  EXPECT_THROW(cli::check_writable("-J", folder.path().string()), UsageError);
  EXPECT_THROW(cli::check_writable("-J", (folder / "no/such").string()), UsageError);
  EXPECT_THROW(cli::write_whole((folder / "no/such").string(), ""), models::ModelError);
}

TEST(BenchFigures, APlotHasACurveForEachCandidate) {
  Report report{some_world(), {}};
  for (const std::int64_t bytes : {1024, 4096, 16384}) {
    for (const bool in_place : {false, true}) {
      Result result = some_result(bytes, in_place, 10);
      result.compare.push_back({"mpi", percentiles({25}), 2.5});
      report.results.push_back(result);
    }
  }
  const std::string svg = plot(report);
  std::size_t curves = 0;
  for (std::size_t at = 0; (at = svg.find("<polyline", at)) != svg.npos; ++at) ++curves;
  EXPECT_EQ(curves, 8u);  // two panels, two placements, kolo and MPI
  EXPECT_EQ(svg.find("nan"), svg.npos);
  EXPECT_EQ(svg.find("inf"), svg.npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(plot({some_world(), {}}).ends_with("</svg>\n"));
}

TEST(BenchFigures, APlotStaysInItsFrame) {
  Report report{some_world(), {}};
  for (const bool in_place : {false, true}) {
    Result result = some_result(1024, in_place, 1000);
    result.time_us = percentiles({1000});  // a power of ten: the axis begins there
    for (const char* name : {"mpi", "a peer with a long name", "another peer"})
      result.compare.push_back({name, percentiles({2500}), 2.5});
    report.results.push_back(result);
  }
  const std::string svg = plot(report);
  EXPECT_EQ(svg.find(">100</text>"), svg.npos) << svg;
  const auto number = [&](std::size_t at, const std::string& name) {
    return std::stod(svg.substr(svg.find(name + "=\"", at) + name.size() + 2));
  };
  const double width = number(0, "width"), height = number(0, "height");
  for (std::size_t at = 0; (at = svg.find("<text ", at)) != svg.npos; ++at) {
    const std::size_t begin = svg.find('>', at) + 1, length = svg.find('<', begin) - begin;
    const double end = svg.find("\"start\"", at) < begin ? 7 * static_cast<double>(length) : 0;  // of 12 points, about
    EXPECT_LT(number(at, " x") + end, width) << svg.substr(begin, length);
    EXPECT_LT(number(at, " y"), height) << svg.substr(begin, length);
  }
}

}  // namespace
}  // namespace kolo::testing
