#include "runtime/world/gpu_assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include <kolo/error.h>

#include "ops/nccl/backend.h"
#include "ops/staged/backend.h"

namespace kolo {
namespace {

NcclTuning nccl_tuning(const Config& config) {
  NcclTuning tuning;
  tuning.staging_bytes = std::max<std::int64_t>(config.gpu_pack_bytes / 256 * 256, 1 << 16);
  tuning.direct_bytes = config.gpu_direct_bytes;
  tuning.wide_halves = config.nccl_wire == "f32";
  tuning.timed = config.timings;
  tuning.register_memory = config.nccl_register;
  return tuning;
}

/// NCCL reads its algorithm from the environment, when it makes its first communicator. Others than all_reduce have no
/// choice, and versions that let one say so would take a bare name for them, too.
void choose_algorithm(const std::string& algo, int version) {
  if (algo == "auto" || std::getenv("NCCL_ALGO")) return;
  const std::string names = algo == "nvls" ? "nvls,nvlstree" : algo;
  setenv("NCCL_ALGO", (version >= 22400 ? "allreduce:" + names : names).c_str(), 0);
}

}  // namespace

void put(Writer& writer, const GpuIdentity& place) {
  for (const std::string& text : {place.host, place.nccl_host, place.facts.name, place.facts.bus, place.why_no_nccl})
    writer.put(text);
  for (const int number : {place.gpu, place.facts.numa_node, place.nccl_version})
    writer.put(static_cast<std::int32_t>(number));
  writer.put(static_cast<std::uint64_t>(place.facts.bytes));
}

GpuIdentity get_gpu_place(Reader& reader) {
  GpuIdentity place;
  for (std::string* text : {&place.host, &place.nccl_host, &place.facts.name, &place.facts.bus, &place.why_no_nccl})
    *text = reader.get_string();
  for (int* number : {&place.gpu, &place.facts.numa_node, &place.nccl_version}) *number = reader.get<std::int32_t>();
  place.facts.bytes = reader.get<std::uint64_t>();
  return place;
}

GpuShare find_gpu(const Config& config, const std::string& host, int local_rank) {
  GpuShare share;
  GpuIdentity& place = share.place;
  place.host = host;
  const char* const host_id = std::getenv("NCCL_HOSTID");
  place.nccl_host = host_id ? host_id : host;
  const int gpus = cuda_gpus();
  if (gpus == 0) return share;
  place.gpu = local_rank % gpus;
  Gpu& gpu = cuda_gpu(place.gpu);
  place.facts = gpu.facts();
  if (config.gpu_backend == "staged") return share;
  const NcclTable* const table = nccl_table(&place.why_no_nccl);
  if (!table) return share;
  choose_algorithm(config.nccl_algo, table->version);
  try {
    share.nccl = std::make_shared<NcclRank>(*table, gpu, nccl_tuning(config));
    place.nccl_version = table->version;
  } catch (const Error& error) {
    place.why_no_nccl = error.what();
  }
  return share;
}

GpuChoice choose_gpu_backends(const Config& config, std::span<const GpuIdentity> places) {
  GpuChoice choice;
  const auto without = std::ranges::find_if(places, [](const GpuIdentity& place) { return place.gpu < 0; });
  const bool none = std::ranges::all_of(places, [](const GpuIdentity& place) { return place.gpu < 0; });
  choice.usable = without == places.end();
  std::string why;
  if (!choice.usable) why = fmt::format("rank {} on {} sees no GPU", without - places.begin(), without->host);
  std::set<std::pair<std::string, std::string>> taken;
  for (std::size_t rank = 0; rank < places.size() && why.empty(); ++rank) {
    const GpuIdentity& place = places[rank];
    if (place.nccl_version == 0)
      why = fmt::format("rank {} on {}: {}", rank, place.host, place.why_no_nccl);
    else if (place.nccl_version / 100 != places.front().nccl_version / 100)
      why = "the ranks load different versions of NCCL";
    else if (!taken.emplace(place.nccl_host, place.facts.bus).second) {
      why = fmt::format("several ranks on {} share GPU {}, which NCCL refuses; start no more ranks than GPUs",
                        place.host, place.facts.bus);
    }
  }
  choice.nccl = choice.usable && why.empty() && config.gpu_backend != "staged";
  if (config.gpu_backend == "nccl" && !choice.nccl) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("KOLO_GPU_BACKEND is 'nccl', which cannot serve these ranks ({}); set it to auto", why));
  }
  if (choice.usable && !choice.nccl && config.gpu_backend != "staged") {
    choice.note = fmt::format("tensors on GPUs travel through host memory, which is slow ({})", why);
  } else if (!choice.usable && !none) {
    choice.note = fmt::format("tensors on GPUs cannot be used ({})", why);
  }
  return choice;
}

std::vector<std::string> gpu_table(std::span<const GpuIdentity> places, const GpuChoice& choice) {
  std::vector<std::string> lines;
  if (!choice.usable) return lines;
  const int version = places.front().nccl_version;
  lines.push_back(choice.nccl ? fmt::format("GPUs, served by NCCL {}:", nccl_version_text(version))
                              : "GPUs, served through host memory:");
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const GpuIdentity& place = places[rank];
    const std::string node = place.facts.numa_node < 0 ? "unknown" : std::to_string(place.facts.numa_node);
    lines.push_back(fmt::format("  rank {:>3}  host {}  GPU {} {} {} ({} GiB)  NUMA node {}", rank, place.host,
                                place.gpu, place.facts.bus, place.facts.name, place.facts.bytes >> 30, node));
  }
  return lines;
}

BackendList gpu_backends(const Config& config, const GpuShare& mine, std::span<const GpuIdentity> places,
                         const GroupInfo& world, const GpuHosts& hosts) {
  const GpuChoice choice = choose_gpu_backends(config, places);
  if (world.rank == 0 && !choice.note.empty()) config.report(choice.note);
  if (world.rank == 0 && config.banner) {
    for (const std::string& line : gpu_table(places, choice)) config.report(line);
  }
  BackendList backends;
  if (!choice.usable) return backends;
  if (choice.nccl) backends.push_back(nccl_backend(mine.nccl, world, hosts.agreeing()));
  backends.push_back(
      staged_backend(cuda_gpu(mine.place.gpu), hosts.staging(), world, staged_within(config.gpu_staging_bytes)));
  return backends;
}

}  // namespace kolo
