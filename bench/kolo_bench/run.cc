#include "bench/kolo_bench/options.h"

#include <fmt/format.h>

#include <optional>

#include "apps/cli/files.h"
#include "apps/cli/terminal.h"
#include "bench/kolo_bench/measure/context.h"
#include "bench/kolo_bench/report/baseline.h"
#include "bench/kolo_bench/report/table.h"

namespace kolo::bench {
namespace {

/// Checks on rank 0, before any measurement, that the results can be written.
void check_files(const Options& options, int ranks, std::optional<Baseline>& baseline) {
  if (!options.json_file.empty()) cli::check_writable("-J", options.json_file);
  if (!options.plot_file.empty()) cli::check_writable("--plot", options.plot_file);
  if (!options.json_file.empty() && cli::same_file(options.json_file, options.plot_file))
    throw UsageError(fmt::format("-J and --plot both name {}; give each a file of its own", options.plot_file));
  if (options.baseline_file.empty()) return;
  baseline.emplace(options.baseline_file);
  baseline->check_world(ranks, std::string(options.path()), std::string(to_string(options.memory)));
}

void measure(BenchContext& context, const std::function<std::int64_t()>& mpi_calls) {
  switch (context.options().task) {
    case Task::sweep: return run_sweep(context);
    case Task::buckets: return run_buckets(context);
    case Task::latency: return run_latency(context);
    case Task::idle: return run_idle(context, mpi_calls);
    case Task::overlap: return run_overlap(context);
    case Task::beside: return run_beside(context);
    case Task::pack: return run_pack(context);
    case Task::tune: return run_tune(context);
  }
}

void write_files(const Options& options, const Report& report) {
  if (!options.json_file.empty()) cli::write_whole(options.json_file, to_json(report));
  if (!options.plot_file.empty()) cli::write_whole(options.plot_file, plot(report));
}

/// The exit code; rank 0 also prints the results that are too slow.
int verdict(const Options& options, const Report& report, const std::optional<Baseline>& baseline) {
  for (const Result& result : report.results) {
    if (result.wrong.value_or(0) > 0) return exit_wrong;
  }
  for (const PackResult& result : report.pack) {
    if (result.wrong.value_or(0) > 0) return exit_wrong;
  }
  std::vector<std::string> slow;
  if (baseline) {
    slow = baseline->slower(report.results, options.tolerance);
    if (const auto lacking = baseline->lacks(report.results); lacking > 0)
      cli::print_problem(fmt::format("note: {} of {} results are not in {}, and were compared with nothing", lacking,
                                     report.results.size(), options.baseline_file));
  }
  if (options.min_busbw) {
    for (std::string& text : below_busbw(report.results, *options.min_busbw)) slow.push_back(std::move(text));
  }
  for (const std::string& text : slow) cli::print_problem("too slow: " + text);
  return slow.empty() ? exit_ok : exit_slow;
}

int measure_and_judge(int argc, const char* const* argv, const Ranks& ranks,
                      const std::function<std::int64_t()>& mpi_calls) {
  Options options;
  std::optional<Baseline> baseline;
  cli::collectively(ranks, [&] {
    options = parse_options(argc, argv);
    if (options.min_busbw && ranks.size() == 1)
      throw UsageError("--min-busbw: the bus bandwidth of one rank is undefined; start more with mpirun");
  });
  cli::check_same(ranks, agreed_part(options));
  cli::collectively(ranks, [&] {
    if (ranks.rank() == 0) check_files(options, ranks.size(), baseline);
  });

  BenchContext context(options, ranks);
  measure(context, mpi_calls);
  context.end();
  std::int64_t code = 0;
  cli::collectively(ranks, [&] {
    if (ranks.rank() > 0) return;
    write_files(options, context.report());
    code = verdict(options, context.report(), baseline);
  });
  return static_cast<int>(ranks.sum(code));
}

}  // namespace

int run(int argc, const char* const* argv, const std::function<std::int64_t()>& mpi_calls) {
  const Ranks ranks(MPI_COMM_WORLD);
  try {
    return measure_and_judge(argc, argv, ranks, mpi_calls);
  } catch (const UsageError& error) {
    if (!error.is_reported()) throw;
    return exit_error;
  }
}

}  // namespace kolo::bench
