#include "runtime/world/process_world.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/handshake.h"
#include "runtime/control/processes.h"
#include "runtime/world/gpu_identity.h"
#include "runtime/world/parts.h"

namespace kolo {
namespace {

/// The backends and the placement on nodes are settings: ranks that differ in them would hang.
void agree_on_settings(Gathering& ranks, const Config& config) {
  const std::uint64_t mine = hash_of_settings(config);
  const auto hashes = ranks.all_values(mine);
  if (std::ranges::any_of(hashes, [&](std::uint64_t hash) { return hash != hashes.front(); }))
    check_settings(ranks.all(settings_message(config, ranks.rank(), host_name())));
}

/// Adds the backends of GPU tensors, if every rank has a GPU.
void add_gpu_backends(const Config& config, const ProcessRanks& ranks, const GpuHosts& hosts, WorldParts& parts) {
  const Topology& topology = parts.control->topology();
  GroupInfo world{.name = "world", .rank = parts.control->rank()};
  world.ranks.resize(topology.places.size());
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  const Topology::Place& place = topology.places[static_cast<std::size_t>(world.rank)];
  const auto before = std::span(topology.places).first(static_cast<std::size_t>(world.rank));
  const auto local_rank = std::ranges::count(before, place.machine, &Topology::Place::machine);
  const GpuShare mine = find_gpu(config, place.host, static_cast<int>(local_rank));
  Writer message;
  put(message, mine.identity);
  std::vector<GpuIdentity> identities;
  for (const auto& bytes : ranks.gathering.all(message.bytes())) {
    Reader reader(bytes);
    identities.push_back(get_gpu_identity(reader));
  }
  auto backends = gpu_backends(config, mine, identities, world, hosts);
  if (!backends.empty()) parts.device = {DeviceKind::cuda, mine.identity.gpu};
  for (auto& backend : backends) parts.backends.push_back(std::move(backend));
}

}  // namespace

World process_world(Gathering& gathering, std::function<void(int exit_code)> end_job, const ProcessBackends& backends,
                    const Config& config) {
  agree_on_settings(gathering, config);
  auto parts = std::make_unique<WorldParts>();
  std::string note;
  auto channel =
      std::make_unique<ProcessChannel>(gathering, std::move(end_job), config.fake_nodes, config.interfaces, &note);
  if (!note.empty() && channel->rank() == 0) report(config, note);
  ProcessRanks ranks{gathering, {}, channel->doorbells(), config.report, known_of_settings(config, gathering)};
  for (const Topology::Place& place : channel->topology().places) ranks.node_of.push_back(place.node);
  ranks.domain_of = domains_of(config, ranks.node_of, gathering);
  if (config.xpmem != "none") ranks.xpmem = Xpmem::open(config.xpmem);
  parts->control = std::move(channel);
  parts->backends = backends.host(config.backend, ranks);
  add_gpu_backends(config, ranks, backends.for_gpus(ranks), *parts);
  return World(std::move(parts));
}

}  // namespace kolo
