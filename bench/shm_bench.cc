// The shared-memory backend against MPI, in one set of processes of one node: for each size both run in turn, many times, and the
// medians are compared. Run it under mpirun:
//
//     shm-bench [--op all_reduce] [--dtype f32] [--min 4] [--max 256M] [--factor 2] [--rounds 15] [--out-of-place] [--check]
//
// A size is that of the larger of input and output, in bytes. `copy` is what every rank would take to copy as many bytes past the
// cache, all at once; algbw/copy says how near the operation comes to that.

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <kolo/config.h>

#include "bench/statistics.h"
#include "ops/copy.h"
#include "ops/float16.h"
#include "ops/mpi_region.h"
#include "ops/pause.h"
#include "ops/shm_processes.h"

namespace kolo::bench {
namespace {

struct Options {
  OpKind kind = OpKind::all_reduce;
  DType dtype = DType::f32;
  std::int64_t min = 4, max = 256 << 20;
  std::int64_t factor = 2;
  int rounds = 15;
  bool in_place = true;
  bool check = false;
  bool mpi = true;
  bool best = false;
};

[[noreturn]] void refuse(const std::string& what) {
  fmt::print(stderr, "shm-bench: {}\n", what);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) refuse(name + " needs a value");
      return argv[++i];
    };
    const auto bytes = [&] { return parse_bytes(value()).value(); };
    if (name == "--op") {
      const std::string wanted = value();
      int kind = 0;
      while (kind < op_kind_count && to_string(static_cast<OpKind>(kind)) != wanted) ++kind;
      if (kind == op_kind_count || !moves_data(static_cast<OpKind>(kind))) refuse("unknown operation " + wanted);
      options.kind = static_cast<OpKind>(kind);
    } else if (name == "--dtype") {
      const std::string wanted = value();
      if (wanted != "f32" && wanted != "bf16" && wanted != "f16") refuse("--dtype takes f32, bf16 or f16");
      options.dtype = wanted == "f32" ? DType::f32 : wanted == "f16" ? DType::f16 : DType::bf16;
      options.mpi = wanted == "f32";
    } else if (name == "--min") options.min = bytes();
    else if (name == "--max") options.max = bytes();
    else if (name == "--factor") options.factor = bytes();
    else if (name == "--rounds") options.rounds = static_cast<int>(bytes());
    else if (name == "--out-of-place") options.in_place = false;
    else if (name == "--check") options.check = true;
    else if (name == "--no-mpi") options.mpi = false;
    else if (name == "--best") options.best = true;
    else refuse("unknown option " + name);
  }
  return options;
}

/// One operation of a size, on memory of its own, as the backend and as MPI run it.
class Work {
 public:
  Work(const Options& options, Backend& backend, int rank, int ranks, std::int64_t bytes)
      : options_(options), backend_(backend), rank_(rank), ranks_(ranks), polite_(ranks > sysconf(_SC_NPROCESSORS_ONLN)) {
    const auto size = static_cast<std::int64_t>(size_of(options.dtype));
    const bool blocks = has_blocks(options.kind);
    elements_ = blocks ? bytes / size / ranks * ranks : bytes / size;
    block_ = blocks ? elements_ / ranks : elements_;
    a_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded(bytes))));
    b_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded(bytes))));
    if (!a_ || !b_) refuse("out of memory");
    fill();
    make_bucket();
  }

  std::int64_t elements() const { return elements_; }

  void fill() {
    const std::int64_t own = kind() == OpKind::all_gather || kind() == OpKind::gather ? block_ : elements_;
    std::memset(b_.get(), 0, static_cast<std::size_t>(elements_) * size_of(options_.dtype));
    for (std::int64_t i = 0; i < elements_; ++i) put(a_.get(), i, -1);
    const std::int64_t first = own == elements_ || !options_.in_place ? 0 : rank_ * block_;
    for (std::int64_t i = 0; i < own; ++i) put(a_.get(), first + i, value(rank_, i));
  }

  void run_backend() {
    const auto operation = backend_.start(bucket_);
    for (int spins = polite_ ? patience : 0; !operation->step(); ++spins) spins < patience ? pause_briefly() : (void)sched_yield();
  }

  void run_mpi() {
    void* in = a_.get();
    void* out = options_.in_place ? a_.get() : b_.get();
    const int all = static_cast<int>(elements_), block = static_cast<int>(block_);
    void* mine = options_.in_place ? MPI_IN_PLACE : in;
    switch (kind()) {
      case OpKind::all_reduce: MPI_Allreduce(mine, out, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
      case OpKind::reduce: MPI_Reduce(rank_ == 0 ? mine : in, out, all, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); break;
      case OpKind::broadcast: MPI_Bcast(in, all, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
      case OpKind::all_gather: MPI_Allgather(mine, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD); break;
      case OpKind::gather: MPI_Gather(rank_ == 0 ? mine : in, block, MPI_FLOAT, out, block, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
      case OpKind::reduce_scatter: MPI_Reduce_scatter_block(mine, out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
      case OpKind::scatter: MPI_Scatter(in, block, MPI_FLOAT, rank_ == 0 ? mine : out, block, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
      case OpKind::all_to_all: MPI_Alltoall(mine, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD); break;
      default: break;
    }
  }

  void run_copy() {
    copy(b_.get(), a_.get(), static_cast<std::size_t>(elements_) * size_of(options_.dtype), CopyTo::memory);
    finish_copies();
  }

  /// Runs the backend once on fresh values, and returns how many elements of the result are wrong.
  std::int64_t wrong() {
    fill();
    run_backend();
    std::int64_t count = 0;
    const Tensor& out = bucket_.tensors[0].out;
    if ((kind() == OpKind::reduce || kind() == OpKind::gather) && rank_ != 0) return 0;
    for (std::int64_t i = 0; i < out.elements(); ++i) count += get(out.data, i) != expected(i);
    return count;
  }

 private:
  static constexpr int patience = 1000;  // spins before a rank offers its core to whoever else wants it

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  static std::size_t rounded(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 4095) / 4096 * 4096); }

  OpKind kind() const { return options_.kind; }
  static float value(int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 16); }

  void put(std::byte* data, std::int64_t i, float number) const {
    if (options_.dtype == DType::f32) reinterpret_cast<float*>(data)[i] = number;
    if (options_.dtype == DType::f16) reinterpret_cast<Float16*>(data)[i] = to_float16(number);
    if (options_.dtype == DType::bf16) reinterpret_cast<BFloat16*>(data)[i] = to_bfloat16(number);
  }
  float get(const void* data, std::int64_t i) const {
    if (options_.dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (options_.dtype == DType::f16) return to_float(static_cast<const Float16*>(data)[i]);
    return to_float(static_cast<const BFloat16*>(data)[i]);
  }
  float expected(std::int64_t i) const {
    if (kind() == OpKind::broadcast || kind() == OpKind::scatter) return value(0, kind() == OpKind::scatter ? rank_ * block_ + i : i);
    if (kind() == OpKind::all_gather || kind() == OpKind::gather) return value(static_cast<int>(i / block_), i % block_);
    if (kind() == OpKind::all_to_all) return value(static_cast<int>(i / block_), rank_ * block_ + i % block_);
    float sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) sum += value(rank, kind() == OpKind::reduce_scatter ? rank_ * block_ + i : i);
    return sum;
  }

  void make_bucket() {
    const auto tensor = [&](std::byte* data, std::int64_t first, std::int64_t count) {
      return Tensor{data + static_cast<std::size_t>(first) * size_of(options_.dtype), Shape{count}, options_.dtype, {}};
    };
    std::byte* const in = a_.get();
    std::byte* const out = options_.in_place ? in : b_.get();
    const bool joins = kind() == OpKind::all_gather || kind() == OpKind::gather;
    const bool splits = kind() == OpKind::reduce_scatter || kind() == OpKind::scatter;
    const std::int64_t own = options_.in_place ? rank_ * block_ : 0;
    BucketTensor both{tensor(in, joins ? own : 0, joins ? block_ : elements_), tensor(out, splits ? own : 0, splits ? block_ : elements_)};
    bucket_.signature.kind = kind();
    bucket_.signature.dtype = options_.dtype;
    bucket_.signature.shape = both.in.shape;
    bucket_.tensors = {both};
  }

  const Options& options_;
  Backend& backend_;
  int rank_, ranks_;
  bool polite_;
  std::int64_t elements_ = 0, block_ = 0;
  std::unique_ptr<std::byte, Free> a_, b_;
  Bucket bucket_;
};

/// Microseconds of one run, on average over `times` in a row; of the slowest rank.
template <class Run>
double time_us(int times, Run run) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) run();
  double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / times;
  MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return us;
}

/// Returns the ratio of the times, MPI's to the backend's.
double measure(const Options& options, Backend& backend, int rank, int ranks, std::int64_t bytes) {
  Work work(options, backend, rank, ranks, bytes);
  std::int64_t wrong = options.check ? work.wrong() : 0;
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (wrong != 0 && rank == 0) refuse(fmt::format("{} wrong elements at {} bytes", wrong, bytes));
  const int times = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{4} << 20) / bytes, 1, 500));
  std::vector<double> ours, theirs, copies;
  for (int round = -2; round < options.rounds; ++round) {
    const double backend_us = time_us(times, [&] { work.run_backend(); });
    const double mpi_us = options.mpi ? time_us(times, [&] { work.run_mpi(); }) : 0;
    const double copy_us = bytes >= 1 << 20 ? time_us(times, [&] { work.run_copy(); }) : 0;
    if (round < 0) continue;
    ours.push_back(backend_us);
    theirs.push_back(mpi_us);
    copies.push_back(copy_us);
  }
  const auto typical = [&](const std::vector<double>& times) { return options.best ? percentiles(times).min : percentiles(times).p50; };
  const double t = typical(ours), mpi = typical(theirs), copy = typical(copies);
  if (rank == 0) {
    const double gigabytes = static_cast<double>(bytes) / 1e3;
    fmt::print("{:>11} {:>11.2f} {:>8.2f} {:>11.2f} {:>8.2f} {:>7.2f} {:>8.2f} {:>7.2f}\n", bytes, t, gigabytes / t, mpi,
               mpi > 0 ? gigabytes / mpi : 0, mpi / t, copy > 0 ? gigabytes / copy : 0, copy / t);
    std::fflush(stdout);
  }
  return mpi / t;
}

void run(const Options& options) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto region = shared_region(MPI_COMM_WORLD, static_cast<std::size_t>(ranks) * sizeof(Bell));
  if (!region) refuse("no shared memory");
  const std::span<Bell> bells(region->at<Bell>(0), static_cast<std::size_t>(ranks));
  const auto backend = shm_process_backend(MPI_COMM_WORLD, bells, report_to_stderr);
  if (!backend) refuse("no shared memory");
  if (rank == 0) {
    fmt::print("{} {}, {} ranks, {} place; microseconds, GB/s\n{:>11} {:>11} {:>8} {:>11} {:>8} {:>7} {:>8} {:>7}\n",
               to_string(options.kind), to_string(options.dtype), ranks, options.in_place ? "in" : "out of", "bytes", "shm", "algbw", "MPI",
               "algbw", "MPI/shm", "copy bw", "of copy");
  }
  double logarithms = 0;
  int sizes = 0;
  const std::int64_t least = static_cast<std::int64_t>(size_of(options.dtype)) * (has_blocks(options.kind) ? ranks : 1);
  for (std::int64_t bytes = std::max(options.min, least); bytes <= options.max; bytes *= options.factor, ++sizes) {
    logarithms += std::log(measure(options, *backend, rank, ranks, bytes));
  }
  if (rank == 0 && options.mpi) fmt::print("MPI/shm, geometric mean: {:.2f}\n", std::exp(logarithms / sizes));
}

}  // namespace
}  // namespace kolo::bench

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  kolo::bench::run(kolo::bench::parse(argc, argv));
  MPI_Finalize();
}
