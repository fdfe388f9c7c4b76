#include "bench/kolo_bench/measure/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <span>

#include "apps/cli/terminal.h"
#include "apps/cli/version.h"
#include "ops/nccl/table.h"

namespace kolo::bench {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

MpiThreads mpi_threads() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level == MPI_THREAD_MULTIPLE     ? MpiThreads::multiple
         : level == MPI_THREAD_SERIALIZED ? MpiThreads::serialized
         : level == MPI_THREAD_FUNNELED   ? MpiThreads::funneled
                                          : MpiThreads::single;
}

Config settings_of_environment() {
  std::vector<std::string> unknown;
  Config config = Config::from_environment(&unknown);
  if (!unknown.empty()) throw UsageError(fmt::format("{} (--help lists the settings)", fmt::join(unknown, "; ")));
  return config;
}

/// The buffer placement of this rank, one of `on_node` ranks of its node.
std::unique_ptr<BufferPlacement> placement_of(const Options& options, const Config& config, int local_rank,
                                              int on_node) {
  if (options.device == DeviceKind::cpu) return host_placement(options.huge_pages);
  Gpu& gpu = gpu_for(local_rank);
  if (!config.fake_nodes.empty())
    throw UsageError(
        "KOLO_FAKE_NODES does not go with --device cuda (pretended nodes have no GPUs of their own); unset it");
  const int gpus = cuda_gpus();
  return gpu_placement(gpu, (on_node - local_rank % gpus + gpus - 1) / gpus);
}

/// The first backend that supports tensors on the device; empty: there is none.
std::string backend_on(const World& world, DeviceKind device) {
  Signature signature;
  signature.device = device;
  signature.shape = Shape{1};
  const auto found = std::ranges::find_if(world.backends(), [&](const auto& one) { return one->supports(signature); });
  return found == world.backends().end() ? "" : std::string((*found)->name());
}

DeviceInfo info_of(const BufferPlacement& place) {
  if (place.device().kind == DeviceKind::cpu) return {};
  const GpuFacts facts = cuda_gpu(place.device().index).facts();
  return {place.device().index, facts.bus, facts.name};
}

/// The texts that ranks have, each once: "mapped", or "mapped+ring".
std::string common_text(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::erase(texts, "");
  return fmt::format("{}", fmt::join(texts, "+"));
}

std::vector<DeviceInfo> devices_of_all(const Ranks& ranks, const DeviceInfo& mine) {
  const auto indices = ranks.gather(std::to_string(mine.index)), buses = ranks.gather(mine.bus),
             names = ranks.gather(mine.name);
  std::vector<DeviceInfo> all;
  for (std::size_t rank = 0; rank < indices.size(); ++rank)
    all.push_back({std::stoi(indices[rank]), buses[rank], names[rank]});
  return all;
}

}  // namespace

BenchContext::BenchContext(const Options& options, const Ranks& ranks)
    : options_(options), ranks_(ranks), watch_(options.timeout_seconds, ranks.rank()) {
  const int on_node = static_cast<int>(ranks.sum_on_node(1));
  cli::collectively(ranks, [&] {
    config_ = settings_of_environment();
    if (options.task == Task::tune && config_.shm_method == "auto") config_.shm_method = "measure";
    place_ = placement_of(options, config_, ranks.rank_on_node(), on_node);
  });
  watch_.begin("making the session");
  World world = launcher_world(config_);
  yields_ = on_node > static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  one_node_ = ranks.nodes() == 1 && config_.fake_nodes.empty();
  describe(world);
  if (options.direct)
    world_.emplace(std::move(world));
  else
    session_.emplace(std::move(world), config_);
  if (options.ordered) group_ = ordered_group();
  watch_.begin("setting up the peer");
  peer_ = make_peer(options, ranks, *place_);
  if (peer_)
    report_.world.peer_version = peer_->version();
  else if (options.task == Task::buckets && options.device == DeviceKind::cpu)
    report_.world.peer_version = mpi_version();
}

Group BenchContext::ordered_group() {
  return session_->new_group(session_->world().info()->ranks, {.order = Order::program});
}

void BenchContext::describe(const World& world) {
  WorldInfo& info = report_.world;
  info.collective = options_.collective->name;
  info.version = cli::version;
  info.ranks = ranks_.size();
  info.nodes =
      config_.fake_nodes.empty() ? ranks_.nodes() : static_cast<int>(std::ranges::count(config_.fake_nodes, ',')) + 1;
  info.hosts = ranks_.gather(host_name());
  for (const std::string& pid : ranks_.gather(std::to_string(::getpid()))) info.pids.push_back(std::stoi(pid));
  info.mpi = mpi_library();
  info.mpi_threads = to_string(mpi_threads());
  info.path = options_.path();
  cli::collectively(ranks_, [&] {
    info.backend = backend_on(world, options_.device);
    if (info.backend.empty())
      throw UsageError("--device cuda: kolo serves no GPUs among these ranks; make sure that every rank sees one");
  });
  info.memory = to_string(options_.memory);
  info.huge_pages = options_.huge_pages;
  info.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  info.device = to_string(options_.device);
  info.devices = devices_of_all(ranks_, info_of(*place_));
  if (!info.backend.starts_with("nccl") && options_.compare != Compare::nccl) return;
  if (const NcclTable* const table = kolo::nccl_table()) info.nccl = nccl_version_text(table->version);
  const char* const algo = std::getenv("NCCL_ALGO");
  info.nccl_algo = algo ? algo : "auto";
}

std::unique_ptr<Candidate> BenchContext::kolo(const Work& work) {
  if (!options_.direct) return through_session(*session_, work, place_->stream(), group_);
  std::unique_ptr<Candidate> candidate;
  cli::collectively(ranks_,
                    [&] { candidate = direct(world_->backends(), ranks_.rank(), ranks_.size(), yields_, work); });
  return candidate;
}

std::vector<std::string> BenchContext::peers() const {
  if (!peer_) return {};
  if (!options_.mpi_algorithms) return {peer_->name()};
  return {peer_->name(), peer_->name() + "-best"};
}

Storage BenchContext::storage(std::size_t bytes, BufferMemory memory) {
  Storage storage;
  cli::collectively(ranks_, [&] {
    const Device device = place_->device();
    if (memory == BufferMemory::session) {
      storage = Storage::of_memory(session_ ? session_->allocate(bytes, device) : world_->allocate(bytes, device),
                                   options_.huge_pages);
      return;
    }
    storage = place_->storage(bytes);
    if (memory == BufferMemory::adopted)
      session_ ? session_->adopt(storage.data(), bytes) : world_->adopt(storage.data(), bytes);
  });
  return storage;
}

void BenchContext::fill(const Work& work) const {
  place_->fill(Checker(work.signature, ranks_.rank(), ranks_.size(), ValueKind::exact, 0), work);
}

void BenchContext::begin(const std::vector<std::string>& peers, const Options& shown) {
  table_ = make_table(shown, peers);
  if (ranks_.size() == 1 && options_.task != Task::idle)
    note("one rank: bus bandwidth is undefined, since nothing crosses a bus");
  print(table_->header(report_.world));
}

/// The GPU reports current use only: sampled here.
std::int64_t BenchContext::device_peak() const {
  const Device device = place_->device();
  return device.kind == DeviceKind::cuda ? static_cast<std::int64_t>(cuda_gpu(device.index).memory_use().peak) : 0;
}

void BenchContext::add(std::vector<Result> results) {
  (void)device_peak();
  print(table_->row(results));
  for (Result& result : results) report_.results.push_back(std::move(result));
}

void BenchContext::end() {
  watch_.begin("the end");
  const auto peaks = ranks_.gather(std::to_string(device_peak()));
  for (std::size_t rank = 0; rank < peaks.size(); ++rank)
    report_.world.devices[rank].peak_bytes = std::stoll(peaks[rank]);
  if (table_) print(table_->footer(report_));
  cli::collectively(ranks_, [&] { cli::check_stdout(); });
}

void BenchContext::print(const std::string& text) {
  if (ranks_.rank() == 0) cli::print(text);
}

void BenchContext::note(const std::string& line) {
  if (ranks_.rank() == 0 && noted_.insert(line).second) cli::print_problem(line);
}

std::optional<std::int64_t> BenchContext::wrong_elements(const Work& work, Candidate& candidate, bool any_order) {
  if (options_.checks == 0) return std::nullopt;
  std::int64_t total = 0;
  for (int pass = 1; pass <= options_.checks; ++pass) {
    const Checker fresh = checker(work, any_order || pass % 2 == 0, static_cast<std::uint64_t>(pass));
    place_->fill(fresh, work);
    ranks_.barrier();
    candidate.run();
    total += count_wrong(work, candidate, fresh, "");
  }
  return total;
}

Checker BenchContext::checker(const Work& work, bool any_order, std::uint64_t seed) {
  // Across nodes and caches, and by NCCL, partial sums are added in another order than between ranks that share one.
  const std::string& backend = report_.world.backend;
  const bool in_rank_order = one_node_ && (backend == "shm" || backend == "local");
  const Signature& how = work.signature;
  const bool rounds = !in_rank_order && options_.device != DeviceKind::cpu && how.op == ReduceOp::average &&
                      !std::has_single_bit(static_cast<unsigned>(ranks_.size()));
  if (rounds && reduces(how.kind) && is_floating_point(how.dtype))
    note(
        "NCCL multiplies averages by 1/n, which is rounded unless n is a power of two; they are checked within that "
        "rounding");
  const auto kind = any_order || !in_rank_order ? ValueKind::exact : ValueKind::full;
  return {how, ranks_.rank(), ranks_.size(), kind, seed, rounds};
}

std::int64_t BenchContext::count_wrong(const Work& work, const Candidate& candidate, const Checker& checker,
                                       const char* when) {
  std::optional<WrongElement> first;
  const std::int64_t wrong = ranks_.sum(place_->wrong(checker, work, &first));
  if (wrong == 0) return 0;
  const auto texts = ranks_.gather(first ? to_string(*first) : "");
  const auto rank = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  note(fmt::format("{}: {} {} wrong{}; on rank {} {}", work.name, candidate.name(),
                   wrong == 1 ? "has 1 element" : fmt::format("has {} elements", wrong), when, rank - texts.begin(),
                   *rank));
  return wrong;
}

namespace {
constexpr std::uint64_t timed_seed = 1 << 20;  // that of no other check
}

TimedCheck::TimedCheck(BenchContext& context, const Work& work, Candidate& kolo)
    : context_(context), work_(work), kolo_(kolo), checker_(context.checker(work, false, timed_seed)) {}

void TimedCheck::before() {
  if (context_.options().checks > 0) context_.place().fill(checker_, work_);
}

void TimedCheck::after() {
  if (context_.options().checks > 0)
    wrong_ += context_.count_wrong(work_, kolo_, checker_, " in the last timed iteration");
}

std::optional<std::int64_t> TimedCheck::all_wrong() {
  const auto wrong = context_.wrong_elements(work_, kolo_, false);
  return wrong ? std::optional(*wrong + wrong_) : wrong;
}

Result make_result(const BenchContext& context, const Work& work, std::span<Candidate* const> candidates,
                   const std::vector<Series>& series) {
  const Signature& how = work.signature;
  Result result;
  result.op = context.options().collective->name;
  for (const auto& [in, out, rows] : work.lanes)
    result.bytes = std::max(result.bytes, static_cast<std::int64_t>(std::max(in.bytes(), out.bytes())));
  result.dtype = how.dtype;
  if (reduces(how.kind)) result.redop = how.op;
  if (has_root(how.kind) && how.kind != OpKind::send_recv) result.root = how.root;
  result.in_place = work.in_place;
  result.mode = context.options().isolated ? "isolated" : "throughput";
  result.iterations = static_cast<std::int64_t>(series[0].us.size());
  result.count = extent_of(how.kind, result.bytes, how.dtype, context.ranks().size()).count;
  result.time_us = percentiles(series[0].us);
  result.slowest_rank = series[0].slowest_rank;
  result.slowest_share = series[0].slowest_share;
  result.mean_of_total_us = series[0].mean_of_total;
  result.method = common_text(context.ranks().gather(std::string(candidates[0]->method())));
  fill_in_bandwidth(result, how.kind, context.ranks().size());
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const Percentiles time = percentiles(series[i].us);
    if (candidates[i]->name() == "copy") {
      result.copy_limit_gbs = static_cast<double>(result.bytes) / time.p50 / 1e3;
    } else {
      result.compare.push_back({std::string(candidates[i]->name()), time, time.p50 / result.time_us.p50});
      result.compare.back().mean_of_total_us = series[i].mean_of_total;
      result.compare.back().version = context.world().peer_version;
    }
  }
  return result;
}

}  // namespace kolo::bench
