#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"

namespace kolo {

/// all_reduce of host tensors among ranks on several nodes, in two levels: within a node by that node's backend,
/// between nodes by one for each stripe. A tensor is cut into as many stripes as the smallest node has ranks: so all of
/// these send at once, and the network carries what a ring over nodes would, whatever the number of ranks on a node.
///
/// all_ranks   of host tensors, among all ranks, and for nothing else; its for_group() makes the stripes' backends, and
///             those of nodes that have no other
/// intra_node  among this rank's node, its ranks ascending; null: none but that of `all_ranks`
/// node_of     by rank of `all_ranks`; spans_shared_nodes()
/// stripe      how a stripe is cut into chunks
///
/// Sums are taken in rank order within a node, then in the order of the nodes' lowest ranks, in the accumulators of
/// reduce(): 16-bit floats are rounded once, integers come out as in rank order. Serves what is reducible() but
/// averages of 64-bit integers, whose sums no type holds. Groups on one node get that node's backend. Making and
/// destroying it, but not its groups, is as collective as that of `all_ranks`. Throws Error{backend}.
std::unique_ptr<Backend> two_level_backend(std::unique_ptr<Backend> all_ranks, std::unique_ptr<Backend> intra_node,
                                           std::vector<int> node_of, int rank, const ChunkRule& stripe);

}  // namespace kolo
