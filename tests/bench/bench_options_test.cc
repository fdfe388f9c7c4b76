// kolo-bench's flags: what they mean, and what is said about those that mean nothing.

#include "bench/kolo_bench/options.h"

#include "tests/bench/bench_testing.h"

namespace kolo::testing {
namespace {

using namespace kolo::bench;
using Bytes = std::vector<std::int64_t>;

TEST(BenchOptions, Defaults) {
  const Options o = bench_options("all_reduce");
  EXPECT_EQ(o.collective->kind, OpKind::all_reduce);
  EXPECT_EQ(o.sizes.all(), Bytes{32 << 20});
  EXPECT_EQ(o.task, Task::sweep);
  EXPECT_EQ(o.format, Format::nccl);
  EXPECT_EQ(o.checks, 1);
  EXPECT_EQ(o.combine, Combine::max);
  EXPECT_FALSE(o.direct || o.isolated || o.compare != Compare::none || o.huge_pages ||
               o.memory != BufferMemory::ordinary || o.copy_limit);
  EXPECT_EQ(o.iterations_for(8), 1000);
  EXPECT_EQ(o.iterations_for(256 << 20), 20);
  EXPECT_EQ(o.warm_up_for(8), 100);
  EXPECT_EQ(o.warm_up_for(256 << 20), 2);
}

TEST(BenchOptions, TheFlagsOfNcclTests) {
  const Options o = bench_options(
      "all_reduce_perf -b 8 -e 1.5K -f 4 -n 7 -w 3 -m 2 -c 0 -o max -d half -z 1 -a 1 -T 9 -J out.json -t 1 -g 1");
  EXPECT_EQ(o.sizes.all(), (Bytes{8, 32, 128, 512}));
  EXPECT_EQ(o.iterations_for(8), 7);
  EXPECT_EQ(o.warm_up_for(8), 3);
  EXPECT_EQ(o.lanes, 2);
  EXPECT_EQ(o.checks, 0);
  EXPECT_EQ(o.ops, std::vector{ReduceOp::max});
  EXPECT_EQ(o.dtypes, std::vector{DType::f16});
  EXPECT_TRUE(o.isolated);
  EXPECT_EQ(o.combine, Combine::average);
  EXPECT_EQ(o.timeout_seconds, 9);
  EXPECT_EQ(o.json_file, "out.json");
  const Options same =
      bench_options("broadcast --minbytes=8 --maxbytes 1536 --stepfactor 4 --iters 7 -r 2 --datatype f16");
  EXPECT_EQ(same.sizes.all(), o.sizes.all());
  EXPECT_EQ(same.root, 2);
  EXPECT_EQ(bench_options("broadcast -r all").root, std::nullopt);
  EXPECT_EQ(bench_options("reduce -o all -d all").ops.size(), 5u);
  EXPECT_EQ(bench_options("reduce -o all -d all").dtypes.size(), 10u);
}

TEST(BenchOptions, CollectivesByAllTheirNames) {
  for (const char* name : {"all_reduce", "allreduce", "all-reduce", "all_reduce_perf", "osu_allreduce"}) {
    EXPECT_EQ(bench_options(name).collective->kind, OpKind::all_reduce) << name;
  }
  EXPECT_EQ(bench_options("bcast").collective->kind, OpKind::broadcast);
  EXPECT_EQ(bench_options("alltoall_perf").collective->kind, OpKind::all_to_all);
  EXPECT_EQ(bench_options("sendrecv").collective->kind, OpKind::send_recv);
  for (const Collective& row : collectives()) EXPECT_EQ(find_collective(row.perf), &row);
}

TEST(BenchOptions, Sizes) {
  EXPECT_EQ(bench_options("all_reduce -b 8 -e 64").sizes.all(), (Bytes{8, 16, 32, 64}));
  EXPECT_EQ(bench_options("all_reduce -b 8 -e 30 -i 8").sizes.all(), (Bytes{8, 16, 24}));
  EXPECT_EQ(bench_options("all_reduce -b 1K -e 1M -f 32").sizes.all(), (Bytes{1 << 10, 32 << 10, 1 << 20}));
  EXPECT_EQ(bench_options("all_reduce -b 1G").sizes.all(), Bytes{1 << 30});
}

TEST(BenchOptions, WhatMeansNothing) {
  const auto starts = [](const std::string& line, const std::string& start) {
    EXPECT_EQ(bench_problem(line).substr(0, start.size()), start) << bench_problem(line);
  };
  starts("", "no collective is named; begin with one of all_reduce, ");
  starts("all_reduc", "'all_reduc' is not a collective; name one of all_reduce, ");
  starts("all_reduce reduce", "'reduce' belongs to no flag; ");
  starts("all_reduce --bytes 8", "unknown flag '--bytes'; --help lists them all");
  starts("all_reduce -x 8", "unknown flag '-x'; ");
  starts("all_reduce -b", "the required argument for option ");
  starts("all_reduce -b 8 -b 9", "-b is given twice; keep one");
  starts("all_reduce -b 8 --minbytes 9", "--minbytes is given twice; keep one");
  for (const char* bad : {"-b 0", "-b -8", "-b 8x", "-e 99999999999G", "-b nan", "-i 0"}) {
    starts(std::string("all_reduce ") + bad, std::string(bad).substr(0, 2) + " is '" + std::string(bad).substr(3) +
                                                 "'; it takes a positive number of bytes");
  }
  starts("all_reduce -f 1", "-f is '1'; it takes a whole number from 2 to ");
  starts("all_reduce -n 0", "-n is '0'; it takes a whole number from 1 to ");
  starts("all_reduce -n 1e3", "-n is '1e3'; ");
  starts("all_reduce -w -1", "-w is '-1'; ");
  starts("all_reduce -m 0", "-m is '0'; ");
  starts("all_reduce -a 4", "-a is '4'; ");
  starts("all_reduce -z 4", "-z is '4'; ");
  starts("all_reduce -g 2", "-g is '2', and kolo's ranks are processes");
  starts("all_reduce -b 16 -e 8", "-b is 16 and -e is 8: the largest size is below the smallest");
  starts("all_reduce -b 8 -e 1G -i 8", "-b 8 -e 1073741824 -i 8 are 134217728 sizes, ");
  starts("all_reduce -i 8 -f 2", "-i and -f do not go together; ");
  starts("all_reduce -o mulsum", "-o mulsum is an operation of NCCL's own");
  starts("all_reduce -o adasum", "-o adasum is made of several reductions");
  starts("all_reduce -o plus", "-o is 'plus'; it takes one of all, sum, prod, min, max, avg, ");
  starts("all_reduce -d f8e4m3", "-d f8e4m3 is an 8-bit float, and kolo has none");
  starts("all_reduce -d f8e5m2", "-d f8e5m2 is an 8-bit float, and kolo has none");
  starts("all_reduce -d complex", "-d is 'complex'; it takes one of all, int8, ");
  starts("all_reduce -d float -o bit_and", "-o bit_and does not work on -d float");
  starts("all_reduce --idle 1 --min-busbw 9", "--idle and --min-busbw do not go together; ");
  starts("broadcast --placement out", "broadcast is always in place");
  starts("send_recv --placement in", "send_recv is never in place");
  starts("all_reduce --compare ucc", "--compare is 'ucc'; it takes one of mpi, nccl, none");
  starts("all_reduce --memory gpu", "--memory is 'gpu'; it takes one of private, session");
  starts("all_reduce --format xml", "--format is 'xml'; it takes one of nccl, osu, csv, json");
  starts("all_reduce --mpi-threads one", "--mpi-threads is 'one'; it takes one of single, funneled, ");
  starts("all_reduce --mpi-threads single", "--mpi-threads single is not enough for a session (");
  starts("all_reduce --mpi-algorithms", "--mpi-algorithms are those of MPI's collectives; add --compare mpi");
  starts("send_recv --compare mpi --mpi-algorithms", "--mpi-algorithms are those of MPI's collectives; leave it out");
  starts("all_reduce --compare mpi --mpi-algorithms --latency", "--mpi-algorithms and --latency do not go together");
  starts("all_reduce --direct=1", "option '--direct' does not take any arguments");
  starts("all_reduce --direct --latency", "--direct and --latency do not go together");
  starts("all_reduce --idle 1 --latency", "--idle and --latency do not go together");
  starts("all_reduce --idle 0", "--idle is '0'; it takes a positive number of seconds");
  starts("all_reduce --ordered --direct", "--ordered and --direct do not go together");
  starts("all_reduce --ordered --buckets llama", "--ordered and --buckets do not go together");
  starts("all_reduce --ordered --beside 4", "--ordered and --beside do not go together");
  starts("all_reduce --ordered --idle 1", "--ordered and --idle do not go together");
  starts("all_reduce --beside 4 --latency", "--beside and --latency do not go together");
  starts("all_reduce --beside 4 --compare mpi", "--beside and --compare do not go together");
  starts("reduce --beside 4", "'reduce' is measured in a sweep of sizes only");
  starts("reduce --latency", "'reduce' is measured in a sweep of sizes only");
  starts("all_reduce --latency -o all", "'all' is for a sweep of sizes");
  starts("all_reduce --latency -b 8", "-b and --latency do not go together");
  starts("all_reduce --tolerance 5%", "--tolerance is that of a baseline");
  starts("all_reduce --baseline x --tolerance -1", "--tolerance is '-1'; it takes a share");
  starts("all_reduce --min-busbw fast", "--min-busbw is 'fast'; it takes a positive number of GB/s");
}

TEST(BenchOptions, ThreadLevels) {
  EXPECT_EQ(bench_options("all_reduce").mpi_level(), MpiThreads::multiple);
  EXPECT_EQ(bench_options("all_reduce --direct").mpi_level(), MpiThreads::single);
  EXPECT_EQ(bench_options("all_reduce --direct --mpi-threads multiple").mpi_level(), MpiThreads::multiple);
  EXPECT_EQ(bench_options("all_reduce --mpi-threads serialized").mpi_level(), MpiThreads::serialized);
}

TEST(BenchOptions, Shares) {
  EXPECT_DOUBLE_EQ(bench_options("all_reduce --baseline x --tolerance 5%").tolerance, 0.05);
  EXPECT_DOUBLE_EQ(bench_options("all_reduce --baseline x --tolerance 0.2").tolerance, 0.2);
  EXPECT_DOUBLE_EQ(bench_options("all_reduce --baseline x").tolerance, 0.05);
}

}  // namespace
}  // namespace kolo::testing
