#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <kolo/mpi.h>

#include "ops/mpi_base/handles.h"
#include "ops/registry/processes.h"
#include "runtime/control/handshake.h"
#include "runtime/control/processes.h"
#include "runtime/world/gpu_identity.h"
#include "runtime/world/launcher.h"
#include "runtime/world/mpi_process.h"
#include "runtime/world/parts.h"
#include "runtime/world/startup_watch.h"

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
void add_gpu_backends(const Config& config, const ProcessRanks& ranks, WorldParts& parts) {
  const Topology& topology = parts.control->topology();
  GroupInfo world{.name = "world", .rank = parts.control->rank()};
  world.ranks.resize(topology.places.size());
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  const auto here = topology.node_ranks(world.rank);
  const auto local_rank = static_cast<int>(std::ranges::find(here, world.rank) - here.begin());
  const GpuShare mine = find_gpu(config, topology.places[static_cast<std::size_t>(world.rank)].host, local_rank);
  Writer message;
  put(message, mine.identity);
  std::vector<GpuIdentity> identities;
  for (const auto& bytes : ranks.gathering.all(message.bytes())) {
    Reader reader(bytes);
    identities.push_back(get_gpu_identity(reader));
  }
  auto backends = gpu_backends(config, mine, identities, world, process_gpu_hosts(ranks));
  if (!backends.empty()) parts.device = {DeviceKind::cuda, mine.identity.gpu};
  for (auto& backend : backends) parts.backends.push_back(std::move(backend));
}

/// The ranks of `comm` as ranks of MPI_COMM_WORLD, which are the launcher's.
std::vector<int> launcher_ranks(MPI_Comm comm) {
  const MpiGroupHandle members = group_of(comm), all = group_of(MPI_COMM_WORLD);
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), result(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check_mpi(MPI_Group_translate_ranks(members.get(), size, ranks.data(), all.get(), result.data()),
            "MPI_Group_translate_ranks");
  return result;
}

/// ensure_mpi(), watched: MPI_Init() waits for ranks that have not reached it.
void ensure_mpi_watched(const Config& config, int launched) {
  std::vector<int> ranks(static_cast<std::size_t>(launched));
  std::iota(ranks.begin(), ranks.end(), 0);
  const StartupWatch watch(config, launched_rank(), std::move(ranks), MPI_COMM_WORLD);
  ensure_mpi();
}

}  // namespace

World mpi_world(MPI_Comm comm, const Config& config) {
  ensure_mpi();
  MpiGathering gathering(comm);
  const StartupWatch watch(config, gathering.rank(), launcher_ranks(comm), comm);
  agree_on_settings(gathering, config);
  auto parts = std::make_unique<WorldParts>();
  std::string note;
  auto channel = std::make_unique<ProcessChannel>(
      gathering, [own = std::make_shared<MpiComm>(duplicate(comm))](int code) { MPI_Abort(own->get(), code); },
      config.fake_nodes, config.interfaces, &note);
  if (!note.empty() && channel->rank() == 0) report(config, note);
  ProcessRanks ranks{gathering, comm, {}, channel->doorbells(), config.report};
  for (const Topology::Place& place : channel->topology().places) ranks.node_of.push_back(place.node);
  parts->control = std::move(channel);
  parts->backends = process_backends(config.backend, ranks);
  add_gpu_backends(config, ranks, *parts);
  return World(std::move(parts));
}

World launcher_world(const Config& config) {
  const char* variable = "";
  const int launched = launched_ranks(&variable);
  if (launched == 0 && !mpi_usable()) return solo_world(config);
  ensure_mpi_watched(config, launched);
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (launched > 1 && size == 1) {
    throw Error(
        ErrorCode::backend,
        fmt::format(
            "the launcher started {} ranks ({}) but MPI sees one (it belongs to another MPI than the one kolo was "
            "built with); start the program with that MPI's own mpirun",
            launched, variable));
  }
  return mpi_world(MPI_COMM_WORLD, config);
}

}  // namespace kolo
