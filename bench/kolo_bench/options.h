#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/op.h>

#include "apps/cli/agreement.h"
#include "apps/cli/flags.h"
#include "bench/kolo_bench/measure/collective.h"

namespace kolo::bench {

using cli::UsageError;

/// The sizes of a sweep: from `min` up to `max`, each `step` larger than the last, or `factor` times as large if step
/// is 0.
struct Sizes {
  std::int64_t min = 32 << 20;
  std::int64_t max = 32 << 20;
  std::int64_t step = 0;
  std::int64_t factor = 2;

  std::vector<std::int64_t> all() const;

  /// Why they cannot be used, and what to try; empty if they can.
  std::string problem() const;
};

enum class Format { nccl, osu, csv, json };

/// How the ranks' times of an iteration are combined, numbered as in nccl-tests.
enum class Combine { rank0, average, min, max };

/// What kolo is compared with.
enum class Compare { none, mpi, nccl };

/// MPI's thread levels, in its order.
enum class MpiThreads { single, funneled, serialized, multiple };
std::string_view to_string(MpiThreads level);

/// Whose pages the buffers have: ordinary ones, those that a session allocates, or ordinary ones that it has adopted.
enum class BufferMemory { ordinary, session, adopted };
/// "private", "session", "adopted".
std::string_view to_string(BufferMemory memory);

enum class Placements { both, out_of_place, in_place };

/// What to measure.
enum class Task {
  sweep,    ///< an operation, at one size after the other
  buckets,  ///< all gradients of a model, at each step
  latency,  ///< one small tensor, again and again
  idle,     ///< nothing
  overlap,  ///< an operation while the program computes
  beside,   ///< small operations while a large one runs
  pack,     ///< the kernels that pack and unpack on a GPU
  tune,     ///< which way is fastest for which operation, and note it in the file of KOLO_TUNING
};

struct Options {
  Task task = Task::sweep;
  const Collective* collective = nullptr;
  Sizes sizes;
  std::optional<std::int64_t> iterations;  ///< nothing: by size
  std::optional<std::int64_t> warm_up;     ///< nothing: a tenth of them, at least two
  int lanes = 1;
  int checks = 1;
  std::vector<ReduceOp> ops{ReduceOp::sum};
  std::vector<DType> dtypes{DType::f32};
  bool all_combinations = false;  ///< ops or types are "all": leave out what cannot be combined
  std::optional<int> root = 0;    ///< nothing: one after the other
  bool isolated = false;
  Combine combine = Combine::max;
  double timeout_seconds = 0;  ///< 0: none
  Placements placements = Placements::both;
  bool direct = false;
  bool ordered = false;
  DeviceKind device = DeviceKind::cpu;
  Compare compare = Compare::none;
  bool mpi_algorithms = false;
  std::optional<MpiThreads> mpi_threads{};  ///< nothing: what the path needs
  bool copy_limit = false;
  bool huge_pages = false;
  BufferMemory memory = BufferMemory::ordinary;
  std::string buckets;  ///< name of a list, or file
  double idle_seconds = 0;
  std::int64_t beside_bytes = 0;  ///< of the small operations
  Format format = Format::nccl;
  std::string json_file, plot_file, baseline_file;  ///< empty: none
  double tolerance = 0.05;                          ///< share of the baseline's time
  std::optional<double> min_busbw;                  ///< GB/s

  /// How operations reach the backends, as results say it.
  std::string_view path() const { return direct ? "direct" : ordered ? "ordered" : "session"; }
  /// The level that MPI is initialised with: a session's threads call it, backends are called by one thread.
  MpiThreads mpi_level() const { return mpi_threads.value_or(direct ? MpiThreads::single : MpiThreads::multiple); }
  /// The iterations for an operation of this size.
  std::int64_t iterations_for(std::int64_t bytes) const;
  std::int64_t warm_up_for(std::int64_t bytes) const;
};

/// All flags, by section, in the order of the help text.
std::span<const cli::Flag<Options>> flags();

/// Reads a command line. Errors: UsageError that names the flag.
Options parse_options(int argc, const char* const* argv);

/// The text that --help or --version ask for, if the command line has one of them.
std::optional<std::string> requested_text(int argc, const char* const* argv);

/// Names and values of what must be equal on all ranks.
std::vector<cli::Agreed> agreed_part(const Options& options);

enum ExitCode { exit_ok = 0, exit_error = 1, exit_slow = 2, exit_timeout = 3, exit_wrong = 7 };

/// Runs a command line on all ranks of MPI_COMM_WORLD, and returns the exit code, the same on every rank. `mpi_calls`
/// returns the number of this process's MPI calls. Errors: Error for a failure that the ranks could not agree on.
int run(int argc, const char* const* argv, const std::function<std::int64_t()>& mpi_calls);

}  // namespace kolo::bench
