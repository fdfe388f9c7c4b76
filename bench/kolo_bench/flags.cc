#include <fmt/format.h>

#include <array>
#include <cmath>

#include <kolo/config.h>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {
namespace {

using cli::choice_of;
using cli::count_of;
using cli::Given;
using cli::number_in;
using cli::refuse;
using Flag = cli::Flag<Options>;

constexpr std::array reduce_ops{ReduceOp::sum,         ReduceOp::product,   ReduceOp::min,    ReduceOp::max,
                                ReduceOp::average,     ReduceOp::bit_and,   ReduceOp::bit_or, ReduceOp::bit_xor,
                                ReduceOp::logical_and, ReduceOp::logical_or};
constexpr std::size_t ops_of_nccl = 5;  // the first ones

constexpr std::array types{DType::i8,  DType::u8,  DType::i32,  DType::u32, DType::i64, DType::u64,    DType::f16,
                           DType::f32, DType::f64, DType::bf16, DType::i16, DType::u16, DType::boolean};
constexpr std::size_t types_of_nccl = 10;

// What the values of flags mean. Errors: UsageError that names the flag and what is accepted.

std::int64_t bytes_of(const Given& given) {
  const auto bytes = parse_bytes(given.value);
  if (!bytes || *bytes < 1)
    refuse(given, "a positive number of bytes, such as 8, 64K or 1.5G (K, M, G count in 1024s)");
  return *bytes;
}

double number_of(const Given& given, std::string_view accepted) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value <= 0 || *value > 1e9) refuse(given, accepted);
  return *value;
}

double tolerance_of(const Given& given) {
  std::string_view text = given.value;
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  const auto value = number_in<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0) refuse(given, "a share, such as 5% or 0.05");
  return percent ? *value / 100 : *value;
}

std::string file_of(const Given& given) {
  return cli::text_of(given, "the name of a file");
}

std::vector<ReduceOp> ops_of(const Given& given) {
  if (given.value == "all") return {reduce_ops.begin(), reduce_ops.begin() + ops_of_nccl};
  std::string accepted = "one of all";
  for (const ReduceOp op : reduce_ops) {
    if (given.value == nccl_name(op) || given.value == to_string(op)) return {op};
    accepted += fmt::format(", {}", nccl_name(op));
  }
  if (given.value == "mulsum")
    throw UsageError(
        "-o mulsum is an operation of NCCL's own, which scales in the reduction; kolo has none like it: use -o sum");
  if (given.value == "adasum")
    throw UsageError("-o adasum is made of several reductions of a backend, not one; use -o sum");
  refuse(given, accepted);
}

std::vector<DType> dtypes_of(const Given& given) {
  if (given.value == "all") return {types.begin(), types.begin() + types_of_nccl};
  std::string accepted = "one of all";
  for (const DType dtype : types) {
    if (given.value == nccl_name(dtype) || given.value == to_string(dtype)) return {dtype};
    accepted += fmt::format(", {}", nccl_name(dtype));
  }
  if (given.value == "f8e4m3" || given.value == "f8e5m2") {
    throw UsageError(
        fmt::format("-d {} is an 8-bit float, and kolo has none; use -d half or -d bfloat16", given.value));
  }
  refuse(given, accepted + ", or kolo's own names, such as f32");
}

constexpr std::int64_t most = 1'000'000'000;

/// For flags of nccl-tests that can have one value only.
void only_one(const Given& given) {
  if (given.value != "1")
    throw UsageError(
        fmt::format("{} is '{}', and kolo's ranks are processes with one thread that mpirun starts; leave it out, and "
                    "use mpirun -np",
                    given.where, given.value));
}

std::vector<Flag> size_flags() {
  return {
      {"Sizes", "minbytes,b", "BYTES", "smallest size; K, M, G count in 1024s (default: 32M)",
       [](Options& o, const Given& g) { o.sizes.min = bytes_of(g); }},
      {"Sizes", "maxbytes,e", "BYTES", "largest size (default: 32M, or -b if that is larger)",
       [](Options& o, const Given& g) { o.sizes.max = bytes_of(g); }},
      {"Sizes", "stepbytes,i", "BYTES", "each size is larger than the last by this",
       [](Options& o, const Given& g) { o.sizes.step = bytes_of(g); }},
      {"Sizes", "stepfactor,f", "N", "each size is N times the last (default: 2)",
       [](Options& o, const Given& g) {
         o.sizes.factor = count_of(g, 2, most);
         o.sizes.step = 0;
       }},
  };
}

std::vector<Flag> operation_flags() {
  return {
      {"Operation", "op,o", "OP", "sum, prod, min, max, avg, bit_and, …, or all of the first five (default: sum)",
       [](Options& o, const Given& g) {
         o.ops = ops_of(g);
         o.all_combinations |= g.value == "all";
       }},
      {"Operation", "datatype,d", "TYPE",
       "float, double, half, bfloat16, int8, …, also f32 and so on, or all (default: float)",
       [](Options& o, const Given& g) {
         o.dtypes = dtypes_of(g);
         o.all_combinations |= g.value == "all";
       }},
      {"Operation", "root,r", "RANK",
       "root of broadcast, reduce, gather and scatter; all: one after the other (default: 0)",
       [](Options& o, const Given& g) {
         o.root = g.value == "all" ? std::nullopt : std::optional(static_cast<int>(count_of(g, 0, most)));
       }},
      {"Operation", "placement", "WHERE", "out-of-place, in-place or both: out, in or both (default: both)",
       [](Options& o, const Given& g) {
         o.placements = choice_of<Placements>(
             g, {{"both", Placements::both}, {"out", Placements::out_of_place}, {"in", Placements::in_place}});
       }},
  };
}

std::vector<Flag> timing_flags() {
  return {
      {"Timing", "iters,n", "N",
       "timed iterations (default: 1000 up to 64 KiB, 300 up to 1 MiB, 60 up to 16 MiB, then 20)",
       [](Options& o, const Given& g) { o.iterations = count_of(g, 1, 10'000'000); }},
      {"Timing", "warmup_iters,w", "N", "warm-up iterations (default: a tenth of -n, at least 2)",
       [](Options& o, const Given& g) { o.warm_up = count_of(g, 0, 10'000'000); }},
      {"Timing", "agg_iters,m", "N", "operations per iteration, on separate tensors (default: 1)",
       [](Options& o, const Given& g) { o.lanes = static_cast<int>(count_of(g, 1, 10'000)); }},
      {"Timing", "average,a", "N",
       "an iteration's time is that of 0: rank 0, 1: the mean of the ranks, 2: the fastest, 3: the slowest (default: "
       "3)",
       [](Options& o, const Given& g) { o.combine = static_cast<Combine>(count_of(g, 0, 3)); }},
      {"Timing", "blocking,z", "N",
       "0, 2: throughput, one iteration after the other; 1, 3: isolated, a barrier (not timed) before each (default: "
       "0)",
       [](Options& o, const Given& g) { o.isolated = count_of(g, 0, 3) % 2 == 1; }},
      {"Timing", "mode", "MODE", "throughput or isolated: the same by name",
       [](Options& o, const Given& g) {
         o.isolated = choice_of<bool>(g, {{"throughput", false}, {"isolated", true}});
       }},
      {"Timing", "check,c", "N",
       "how often to check every element of the result, to the last bit, in runs that are not timed, beside that of "
       "the last timed one; 0: never, nor that (default: 1)",
       [](Options& o, const Given& g) { o.checks = static_cast<int>(count_of(g, 0, 1000)); }},
      {"Timing", "timeout,T", "SECONDS", "end the job if a measurement takes longer (default: 0, never)",
       [](Options& o, const Given& g) { o.timeout_seconds = static_cast<double>(count_of(g, 0, most)); }},
      {"Timing", "nthreads,t", "1", "accepted for compatibility with nccl-tests",
       [](Options&, const Given& g) { only_one(g); }},
      {"Timing", "ngpus,g", "1", "accepted for compatibility with nccl-tests",
       [](Options&, const Given& g) { only_one(g); }},
  };
}

std::vector<Flag> path_flags() {
  return {
      {"What is measured", "direct", "",
       "call the backend from this thread, with no session and no coordinator, as nccl-tests calls NCCL",
       [](Options& o, const Given&) { o.direct = true; }},
      {"What is measured", "ordered", "",
       "in a group whose operations are matched by their order: kolo's have no name and are not negotiated",
       [](Options& o, const Given&) { o.ordered = true; }},
      {"What is measured", "compare", "PEER",
       "mpi or nccl: time its call on the same buffers, in turn, and print the ratio to kolo's time",
       [](Options& o, const Given& g) {
         o.compare = choice_of<Compare>(g, {{"mpi", Compare::mpi}, {"nccl", Compare::nccl}, {"none", Compare::none}});
       }},
      {"What is measured", "mpi-algorithms", "",
       "with --compare mpi: time each of Open MPI's algorithms, too, and show the fastest as mpi-best",
       [](Options& o, const Given&) { o.mpi_algorithms = true; }},
      {"What is measured", "mpi-threads", "LEVEL",
       "MPI's thread level: single, funneled, serialized or multiple (default: single with --direct, which calls it "
       "from one thread; else multiple)",
       [](Options& o, const Given& g) {
         o.mpi_threads = choice_of<MpiThreads>(g, {{"single", MpiThreads::single},
                                                   {"funneled", MpiThreads::funneled},
                                                   {"serialized", MpiThreads::serialized},
                                                   {"multiple", MpiThreads::multiple}});
       }},
      {"What is measured", "device", "KIND", "cpu, or cuda: buffers on this rank's GPU (default: cpu)",
       [](Options& o, const Given& g) {
         o.device = choice_of<DeviceKind>(g, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}});
       }},
      {"What is measured", "copy-limit", "",
       "also measure what all ranks can copy at once past their caches, in buffers of that size",
       [](Options& o, const Given&) { o.copy_limit = true; }},
      {"What is measured", "memory", "KIND",
       "private: ordinary pages; session: what session.allocate() gives; adopted: ordinary pages, given to "
       "session.adopt() (default: private)",
       [](Options& o, const Given& g) {
         o.memory = choice_of<BufferMemory>(g, {{"private", BufferMemory::ordinary},
                                                {"session", BufferMemory::session},
                                                {"adopted", BufferMemory::adopted}});
       }},
      {"What is measured", "thp", "", "transparent huge pages for all buffers (default: small pages)",
       [](Options& o, const Given&) { o.huge_pages = true; }},
      {"Instead of a sweep", "buckets", "LIST",
       "all_reduce a model's gradients, named, in each step: resnet50, llama, or a file with one element count a line",
       [](Options& o, const Given& g) {
         o.task = Task::buckets;
         o.buckets = file_of(g);
       }},
      {"Instead of a sweep", "latency", "",
       "one dependent 4-byte all_reduce after another, through the whole runtime: by name, then in an ordered group; "
       "then 8 bytes there and back by tag",
       [](Options& o, const Given&) { o.task = Task::latency; }},
      {"Instead of a sweep", "idle", "SECONDS",
       "idle in a session; print each rank's share of a core and its MPI calls",
       [](Options& o, const Given& g) {
         o.task = Task::idle;
         o.idle_seconds = number_of(g, "a positive number of seconds");
       }},
      {"Instead of a sweep", "pack", "",
       "on a GPU: the kernels that pack and unpack, for 64 tensors of 1 MiB, for 4000 small ones, or for those of "
       "--buckets, against a copy",
       [](Options& o, const Given&) { o.task = Task::pack; }},
      {"Instead of a sweep", "tune", "",
       "find out which way within a node is fastest for which operation and size (in two minutes at most), show it, "
       "and note it in the file that KOLO_TUNING names",
       [](Options& o, const Given&) {
         o.task = Task::tune;
         o.direct = true;
       }},
      {"Instead of a sweep", "overlap", "", "how much of the communication hides behind computation, as OSU defines it",
       [](Options& o, const Given&) { o.task = Task::overlap; }},
      {"Instead of a sweep", "beside", "BYTES",
       "how long dependent operations of this size take in another group while one of -b to -e runs, and what that "
       "keeps of its bandwidth",
       [](Options& o, const Given& g) {
         o.task = Task::beside;
         o.beside_bytes = bytes_of(g);
       }},
  };
}

std::vector<Flag> output_flags() {
  return {
      {"Output", "format", "FORMAT", "nccl, osu, csv or json (default: nccl)",
       [](Options& o, const Given& g) {
         o.format = choice_of<Format>(
             g, {{"nccl", Format::nccl}, {"osu", Format::osu}, {"csv", Format::csv}, {"json", Format::json}});
       }},
      {"Output", "output_file,J", "FILE.json", "also write the JSON to a file, once everything is measured",
       [](Options& o, const Given& g) { o.json_file = file_of(g); }},
      {"Output", "plot", "FILE.svg", "draw bandwidth and latency over the size",
       [](Options& o, const Given& g) { o.plot_file = file_of(g); }},
      {"Output", "baseline", "OLD.json", "exit with code 2 if a median is longer than in this file of -J",
       [](Options& o, const Given& g) { o.baseline_file = file_of(g); }},
      {"Output", "tolerance", "SHARE", "tolerated slowdown against the baseline (default: 5%)",
       [](Options& o, const Given& g) { o.tolerance = tolerance_of(g); }},
      {"Output", "min-busbw", "GB/s", "exit with code 2 if no size reaches this bus bandwidth",
       [](Options& o, const Given& g) { o.min_busbw = number_of(g, "a positive number of GB/s"); }},
  };
}

std::vector<Flag> all_flags() {
  std::vector<Flag> all;
  for (auto section : {size_flags(), operation_flags(), timing_flags(), path_flags(), output_flags()}) {
    for (Flag& flag : section) all.push_back(std::move(flag));
  }
  return all;
}

}  // namespace

std::span<const Flag> flags() {
  static const std::vector<Flag> table = all_flags();
  return table;
}

}  // namespace kolo::bench
