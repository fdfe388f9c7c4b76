#include "ops/registry/processes.h"

#include <algorithm>
#include <utility>

#include "ops/local/backend.h"
#include "ops/mpi/backend.h"
#include "ops/mpi_base/handles.h"
#include "ops/registry/registry.h"
#include "ops/shm/processes.h"
#include "ops/two_level/backend.h"
#include "ops/two_level/node_placement.h"

namespace kolo {
namespace {

constexpr MpiTuning small_agreements{{4096, 1024}, 2048, 2};

bool one_node(const ProcessRanks& ranks) {
  return std::ranges::all_of(ranks.node_of, [](int node) { return node == 0; });
}

MpiTuning tuning(const ProcessRanks& ranks) {
  return one_node(ranks) ? MpiTuning{} : between_nodes;
}

}  // namespace

std::unique_ptr<Backend> node_backend(const ProcessRanks& ranks) {
  int rank = 0, size = 0;
  check_mpi(MPI_Comm_rank(ranks.comm, &rank), "MPI_Comm_rank");
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(ranks.comm, ranks.node_of[static_cast<std::size_t>(rank)], 0, &made), "MPI_Comm_split");
  const MpiComm node(made);
  check_mpi(MPI_Comm_size(node.get(), &size), "MPI_Comm_size");
  if (size == 1) return nullptr;
  MpiGathering gathering(node.get());
  auto shared = shm_process_backend(gathering, ranks.doorbells, ranks.report);
  return shared ? std::move(shared) : mpi_backend(node.get());
}

BackendList process_backends(std::string_view setting, const ProcessRanks& ranks) {
  const bool alone = ranks.node_of.size() == 1;
  std::vector<BackendOffer> offers;
  if (alone) offers.push_back({"local", [] { return std::move(local_backends(1, {}).front()); }});
  if (one_node(ranks)) {
    offers.push_back(
        {"shm", [&] { return shm_process_backend(ranks.gathering, ranks.doorbells, ranks.report); }, alone});
  }
  offers.push_back({"mpi", [&] { return mpi_backend(ranks.comm, tuning(ranks)); }});
  BackendList backends = make_backends(setting, offers);
  if (setting == "auto" && spans_shared_nodes(ranks.node_of)) {
    int rank = 0;
    check_mpi(MPI_Comm_rank(ranks.comm, &rank), "MPI_Comm_rank");
    auto inter_node = mpi_backend(ranks.comm, between_nodes);  // not the groups' own: these have the same tags
    backends.insert(backends.begin(), two_level_backend(std::move(inter_node), node_backend(ranks), ranks.node_of, rank,
                                                        between_nodes.chunks));
  }
  return backends;
}

GpuHosts process_gpu_hosts(const ProcessRanks& ranks) {
  const auto staging = [&ranks] {
    BackendList list;
    if (one_node(ranks) && ranks.node_of.size() > 1) {
      if (auto shared = shm_process_backend(ranks.gathering, ranks.doorbells, ranks.report))
        list.push_back(std::move(shared));
    }
    list.push_back(mpi_backend(ranks.comm, tuning(ranks)));
    return list;
  };
  return {staging, [&ranks] { return mpi_backend(ranks.comm, small_agreements); }};
}

}  // namespace kolo
