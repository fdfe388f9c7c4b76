#include "ops/registry/mpi_processes.h"

#include <utility>

#include "ops/local/backend.h"
#include "ops/mpi/backend.h"
#include "ops/mpi_base/handles.h"
#include "ops/registry/registry.h"
#include "ops/shm/pairs.h"
#include "ops/two_level/backend.h"
#include "ops/two_level/node_placement.h"

namespace kolo {
namespace {

constexpr MpiTuning small_agreements{{4096, 1024}, 2048, 2};

MpiTuning tuning(const ProcessRanks& ranks) {
  return ranks.one_node() ? MpiTuning{} : between_nodes;
}

RankPlaces places(const ProcessRanks& ranks) {
  return {ranks.node_of, ranks.domain_of};
}

BackendList host_backends_over_mpi(std::string_view setting, const ProcessRanks& ranks, MPI_Comm comm) {
  const bool alone = ranks.node_of.size() == 1;
  std::vector<BackendOffer> offers;
  if (alone) offers.push_back({"local", [] { return std::move(local_backends(1, {}).front()); }});
  if (ranks.one_node()) {
    offers.push_back({"shm", [&] { return node_memory_backend(ranks.gathering, ranks); }, alone});
  }
  offers.push_back({"mpi", [&] { return mpi_backend(comm, tuning(ranks), places(ranks)); }});
  BackendList backends = make_backends(setting, offers);
  if (setting == "auto" && spans_shared_nodes(ranks.node_of)) {
    auto inter_node = mpi_backend(comm, between_nodes, places(ranks));  // not the groups' own: these have the same tags
    backends.insert(backends.begin(), two_level_backend(std::move(inter_node), node_backend(ranks, comm), ranks.node_of,
                                                        ranks.gathering.rank(), between_nodes.chunks));
  }
  const bool shares = !alone && (ranks.one_node() || spans_shared_nodes(ranks.node_of));
  if (setting != "mpi" && shares) {  // before what goes over MPI
    const bool after = setting == "shm" || backends.size() > 1;
    if (auto pairs =
            shm_pairs_backend(ranks.gathering, ranks.node_of, ranks.doorbells, backends.front()->memory(), ranks.known))
      backends.insert(backends.begin() + (after ? 1 : 0), std::move(pairs));
  }
  return backends;
}

GpuHosts gpu_hosts_over_mpi(const ProcessRanks& ranks, MPI_Comm comm) {
  const auto staging = [&ranks, comm] {
    BackendList list;
    if (ranks.one_node() && ranks.node_of.size() > 1) {
      if (auto shared = node_memory_backend(ranks.gathering, ranks)) list.push_back(std::move(shared));
    }
    list.push_back(mpi_backend(comm, tuning(ranks), places(ranks)));
    return list;
  };
  return {staging, [comm] { return mpi_backend(comm, small_agreements); }};
}

}  // namespace

std::unique_ptr<Backend> node_backend(const ProcessRanks& ranks, MPI_Comm comm) {
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, ranks.node(), 0, &made), "MPI_Comm_split");
  const MpiComm node(made);
  MpiGathering gathering(made);
  if (gathering.size() == 1) return nullptr;
  auto shared = node_memory_backend(gathering, ranks);
  return shared ? std::move(shared) : mpi_backend(made, {}, {{}, ranks.of_node(ranks.domain_of)});
}

ProcessBackends backends_over_mpi(MPI_Comm comm) {
  return {[comm](std::string_view setting, const ProcessRanks& ranks) {
            return host_backends_over_mpi(setting, ranks, comm);
          },
          [comm](const ProcessRanks& ranks) { return gpu_hosts_over_mpi(ranks, comm); }};
}

}  // namespace kolo
