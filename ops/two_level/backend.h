#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/mpi/transfer.h"
#include "ops/two_level/node_placement.h"

namespace kolo {

/// Makes the backend of the ranks of one node, all ranks of `node`. Collective over them; groups of these ranks get
/// theirs by its for_group(), or go over MPI where that has none.
using NodeBackendMaker = std::function<std::unique_ptr<Backend>(MPI_Comm node)>;

/// What serves the ranks of one node best: shm_process_backend(), or mpi_backend() where they cannot share memory, of
/// which one rank's `report` says why. Collective over them. `doorbells` as for shm_process_backend().
std::unique_ptr<Backend> node_backend(MPI_Comm node, std::span<Doorbell> doorbells,
                                      const std::function<void(const std::string&)>& report);

/// all_reduce of host tensors among ranks on several nodes, in two levels: within a node by that node's backend,
/// between nodes over MPI. A tensor is cut into as many stripes as the smallest node has ranks: so all of these send at
/// once, and what crosses the network is what a ring over nodes would carry, whatever the number of ranks on a node.
///
/// comm      its ranks are those of the group; duplicated
/// node_of   by rank of `comm`; spans_shared_nodes()
/// tuning    of what crosses the network: segments are those of a stripe
///
/// Sums are taken in rank order within a node, then in the order of the nodes' lowest ranks, in the accumulators of
/// reduce(): 16-bit floats are rounded once, integers come out as in rank order. Serves what is reducible() but
/// averages of 64-bit integers, whose sums no type holds. Groups on one node get that node's backend. Making and
/// destroying it are collective. Throws Error{backend}.
std::unique_ptr<Backend> nodes_backend(MPI_Comm comm, std::vector<int> node_of, NodeBackendMaker make_node,
                                       const MpiTuning& tuning = between_nodes);

}  // namespace kolo
