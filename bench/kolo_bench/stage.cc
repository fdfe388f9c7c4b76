#include "bench/kolo_bench/stage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "bench/kolo_bench/version.h"

namespace kolo::bench {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return std::string(text, std::string_view(text).find_first_of(",\n\0"));
}

Config settings_of_environment() {
  std::vector<std::string> unknown;
  Config config = Config::from_environment(&unknown);
  if (!unknown.empty()) throw UsageError(fmt::format("{} (--help lists the settings)", fmt::join(unknown, "; ")));
  return config;
}

}  // namespace

Stage::Stage(const Options& options, const Ranks& ranks)
    : options_(options), ranks_(ranks), watch_(options.timeout_seconds, ranks.rank()) {
  ranks.together([&] { config_ = settings_of_environment(); });
  watch_.begin("making the session");
  World world = launcher_world(config_);
  const std::string backend(world.backends().front()->name());
  if (options.direct) world_.emplace(std::move(world));
  else session_.emplace(std::move(world), config_);

  const int on_node = static_cast<int>(ranks.sum_on_node(1));
  const int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  yields_ = on_node > cores;
  one_node_ = ranks.nodes() == 1 && config_.fake_nodes.empty();
  WorldInfo& info = report_.world;
  info.collective = options.collective->name;
  info.version = version;
  info.ranks = ranks.size();
  info.nodes = config_.fake_nodes.empty() ? ranks.nodes() : static_cast<int>(std::ranges::count(config_.fake_nodes, ',')) + 1;
  info.hosts = ranks.gather(host_name());
  for (const std::string& pid : ranks.gather(std::to_string(::getpid()))) info.pids.push_back(std::stoi(pid));
  info.mpi = mpi_library();
  info.path = options.direct ? "direct" : "session";
  info.backend = backend;
  info.memory = options.session_memory ? "session" : "private";
  info.huge_pages = options.huge_pages;
  info.cores = cores;
}

std::unique_ptr<Contestant> Stage::kolo(const Work& work) {
  if (!options_.direct) return through_session(*session_, work);
  std::unique_ptr<Contestant> contestant;
  ranks_.together([&] { contestant = direct(world_->backends(), ranks_.rank(), ranks_.size(), yields_, work); });
  return contestant;
}

Storage Stage::storage(std::size_t bytes) {
  Storage storage;
  ranks_.together([&] {
    if (!options_.session_memory) storage = Storage::private_pages(bytes, options_.huge_pages);
    else storage = Storage::of_memory(session_ ? session_->allocate(bytes) : world_->allocate(bytes), options_.huge_pages);
  });
  return storage;
}

void Stage::begin(const std::vector<std::string>& peers, const Options& shown) {
  table_ = make_table(shown, peers);
  if (ranks_.size() == 1 && options_.task != Task::idle)
    note("one rank: bus bandwidth is undefined, since nothing crosses a bus");
  print(table_->header(report_.world));
}

void Stage::add(std::vector<Result> results) {
  print(table_->row(results));
  for (Result& result : results) report_.results.push_back(std::move(result));
}

void Stage::end() {
  watch_.begin("the end");
  print(table_->footer(report_));
  ranks_.together([&] {
    if (std::ferror(stdout) != 0)
      throw UsageError("cannot write to stdout; let it go to a terminal, a file with room, or /dev/null");
  });
}

void Stage::print(const std::string& text) {
  if (ranks_.rank() > 0) return;
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  (void)std::fflush(stdout);
}

void Stage::note(const std::string& line) {
  if (ranks_.rank() == 0 && noted_.insert(line).second) print_problem(line);
}

std::optional<std::int64_t> Stage::wrong_elements(const Work& work, Contestant& contestant, bool any_order) {
  if (options_.checks == 0) return std::nullopt;
  std::int64_t total = 0;
  for (int pass = 1; pass <= options_.checks; ++pass) {
    // Across nodes partial sums are added in another order than within one.
    const auto kind = any_order || !one_node_ || pass % 2 == 0 ? ValueKind::exact : ValueKind::full;
    const Checker checker(work.signature, ranks_.rank(), ranks_.size(), kind, static_cast<std::uint64_t>(pass));
    total += wrong_after_a_run(work, contestant, checker);
  }
  return total;
}

std::int64_t Stage::wrong_after_a_run(const Work& work, Contestant& contestant, const Checker& checker) {
  checker.fill(work);
  ranks_.barrier();
  contestant.run();
  std::optional<WrongElement> first;
  const std::int64_t wrong = ranks_.sum(checker.wrong(work, &first));
  if (wrong == 0) return 0;
  const auto texts = ranks_.gather(first ? to_string(*first) : "");
  const auto rank = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  note(fmt::format("{}: {} {} wrong; on rank {} {}", work.name, contestant.name(),
                   wrong == 1 ? "has 1 element" : fmt::format("has {} elements", wrong), rank - texts.begin(), *rank));
  return wrong;
}

Result make_result(const Stage& stage, const Work& work, std::span<Contestant* const> contestants,
                   const std::vector<Series>& series) {
  const Signature& how = work.signature;
  Result result;
  result.op = stage.options().collective->name;
  for (const auto& [in, out, rows] : work.lanes)
    result.bytes = std::max(result.bytes, static_cast<std::int64_t>(std::max(in.bytes(), out.bytes())));
  result.dtype = how.dtype;
  if (reduces(how.kind)) result.redop = how.op;
  if (has_root(how.kind) && how.kind != OpKind::send_recv) result.root = how.root;
  result.in_place = work.in_place;
  result.mode = stage.options().isolated ? "isolated" : "throughput";
  result.iterations = static_cast<std::int64_t>(series[0].us.size());
  result.count = extent_of(how.kind, result.bytes, how.dtype, stage.ranks().size()).count;
  result.time_us = percentiles(series[0].us);
  result.slowest_rank = series[0].slowest_rank;
  result.slowest_share = series[0].slowest_share;
  fill_in_bandwidth(result, how.kind, stage.ranks().size());
  for (std::size_t i = 1; i < contestants.size(); ++i) {
    const Percentiles time = percentiles(series[i].us);
    if (contestants[i]->name() == "copy") {
      result.copy_limit_gbs = static_cast<double>(result.bytes) / time.p50 / 1e3;
    } else {
      result.compare.push_back({std::string(contestants[i]->name()), time, time.p50 / result.time_us.p50});
    }
  }
  return result;
}

}  // namespace kolo::bench
