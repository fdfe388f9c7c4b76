#include "ops/registry/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

#include <kolo/error.h>

#include "ops/host/machine.h"
#include "ops/local/backend.h"
#include "ops/nccl/backend.h"
#include "ops/nccl/rank.h"
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
  tuning.blocking = config.nccl_blocking;
  return tuning;
}

/// NCCL reads its algorithm from the environment, which a process with threads must not change. Only all_reduce has a
/// choice; versions that know the prefix would apply a bare name to every operation.
void check_algorithm(const std::string& algo, std::span<const GpuIdentity> identities) {
  const auto without = std::ranges::find(identities, "", &GpuIdentity::nccl_algo);
  if (algo == "auto" || without == identities.end()) return;
  const std::string names = algo == "nvls" ? "nvls,nvlstree" : algo;  // between nodes it is another one
  throw Error(ErrorCode::invalid_argument,
              fmt::format("KOLO_NCCL_ALGO is '{}', which NCCL learns from NCCL_ALGO only, and rank {} on {} has none; "
                          "start every rank with it: mpirun -x NCCL_ALGO={}{}",
                          algo, without - identities.begin(), without->host,
                          without->nccl_version >= 22400 ? "allreduce:" : "", names));
}

}  // namespace

GpuShare find_gpu(const Config& config, const std::string& host, int local_rank) {
  GpuShare share;
  GpuIdentity& identity = share.identity;
  identity.host = host;
  const char* const host_id = std::getenv("NCCL_HOSTID");
  identity.nccl_host = host_id ? host_id : boot_id();
  if (identity.nccl_host.empty()) identity.nccl_host = host;
  const char* const algo = std::getenv("NCCL_ALGO");
  identity.nccl_algo = algo ? algo : "";
  const int gpus = cuda_gpus();
  if (gpus == 0) return share;
  identity.gpu = local_rank % gpus;
  Gpu& gpu = cuda_gpu(identity.gpu);
  identity.facts = gpu.facts();
  if (config.gpu_backend == "staged") return share;
  const NcclTable* const table = nccl_table(&identity.why_no_nccl);
  if (!table) return share;
  share.nccl = std::make_shared<NcclRank>(*table, gpu, nccl_tuning(config));
  identity.nccl_version = table->version;
  return share;
}

GpuChoice choose_gpu_backends(const Config& config, std::span<const GpuIdentity> identities) {
  GpuChoice choice;
  const auto without = std::ranges::find_if(identities, [](const GpuIdentity& identity) { return identity.gpu < 0; });
  const bool none = std::ranges::all_of(identities, [](const GpuIdentity& identity) { return identity.gpu < 0; });
  choice.usable = without == identities.end();
  std::string why;
  if (!choice.usable) why = fmt::format("rank {} on {} sees no GPU", without - identities.begin(), without->host);
  std::set<std::pair<std::string, std::string>> taken;
  for (std::size_t rank = 0; rank < identities.size() && why.empty(); ++rank) {
    const GpuIdentity& identity = identities[rank];
    if (identity.nccl_version == 0)
      why = fmt::format("rank {} on {}: {}", rank, identity.host, identity.why_no_nccl);
    else if (identity.nccl_version != identities.front().nccl_version)
      why = fmt::format("rank 0 loads NCCL {}, and rank {} on {} {}; install one version on all hosts",
                        nccl_version_text(identities.front().nccl_version), rank, identity.host,
                        nccl_version_text(identity.nccl_version));
    else if (!taken.emplace(identity.nccl_host, identity.facts.bus).second) {
      why = fmt::format("several ranks on {} share GPU {}, which NCCL refuses; start no more ranks than GPUs",
                        identity.host, identity.facts.bus);
    }
  }
  choice.nccl = choice.usable && why.empty() && config.gpu_backend != "staged";
  if (config.gpu_backend == "nccl" && !choice.nccl) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("KOLO_GPU_BACKEND is 'nccl', which cannot serve these ranks ({}); set it to auto", why));
  }
  if (choice.nccl) check_algorithm(config.nccl_algo, identities);
  if (choice.usable && !choice.nccl && config.gpu_backend != "staged") {
    choice.note = fmt::format("tensors on GPUs travel through host memory, which is slow ({})", why);
  } else if (choice.nccl && identities.size() > most_combined_ranks) {
    choice.note = fmt::format(
        "what NCCL cannot reduce, such as products while ranks have joined, travels through host "
        "memory among more than {} ranks, which is slow",
        most_combined_ranks);
  } else if (!choice.usable && !none) {
    choice.note = fmt::format("tensors on GPUs cannot be used ({})", why);
  }
  return choice;
}

std::vector<std::string> gpu_table(std::span<const GpuIdentity> identities, const GpuChoice& choice) {
  std::vector<std::string> lines;
  if (!choice.usable) return lines;
  const int version = identities.front().nccl_version;
  lines.push_back(choice.nccl ? fmt::format("GPUs, served by NCCL {}:", nccl_version_text(version))
                              : "GPUs, served through host memory:");
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const GpuIdentity& identity = identities[rank];
    const std::string node = identity.facts.numa_node < 0 ? "unknown" : std::to_string(identity.facts.numa_node);
    lines.push_back(fmt::format("  rank {:>3}  host {}  GPU {} {} {} ({} GiB)  NUMA node {}", rank, identity.host,
                                identity.gpu, identity.facts.bus, identity.facts.name, identity.facts.bytes >> 30,
                                node));
  }
  return lines;
}

BackendList gpu_backends(const Config& config, const GpuShare& mine, std::span<const GpuIdentity> identities,
                         const GroupInfo& world, const GpuHosts& hosts) {
  const GpuChoice choice = choose_gpu_backends(config, identities);
  if (world.rank == 0 && !choice.note.empty()) report(config, choice.note);
  if (world.rank == 0 && config.banner) {
    for (const std::string& line : gpu_table(identities, choice)) report(config, line);
  }
  BackendList backends;
  if (!choice.usable) return backends;
  if (choice.nccl) backends.push_back(nccl_backend(mine.nccl, world, hosts.agreeing()));
  backends.push_back(
      staged_backend(cuda_gpu(mine.identity.gpu), hosts.staging(), world, staged_within(config.gpu_staging_bytes)));
  return backends;
}

std::vector<BackendList> thread_gpu_backends(const Config& config, std::span<const GpuShare> shares,
                                             std::span<Doorbell> doorbells) {
  std::vector<GpuIdentity> identities;
  for (const GpuShare& share : shares) identities.push_back(share.identity);
  GroupInfo world{.name = "world"};
  world.ranks.resize(shares.size());
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  std::vector<std::vector<std::unique_ptr<Backend>>> sets;  // each has one backend for every rank
  std::vector<BackendList> result;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    world.rank = static_cast<int>(rank);
    std::size_t used = 0;
    const auto next = [&] {  // every rank asks for the same ones
      if (used == sets.size()) sets.push_back(local_backends(static_cast<int>(shares.size()), doorbells));
      return std::move(sets[used++][rank]);
    };
    const auto staging = [&] {
      BackendList list;
      list.push_back(next());
      return list;
    };
    result.push_back(gpu_backends(config, shares[rank], identities, world, {staging, next}));
  }
  return result;
}

}  // namespace kolo
