#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"

namespace kolo {

/// Collectives of host tensors among ranks on several nodes, in two levels: within a node by that node's backend,
/// between nodes by one for each stripe. A tensor is cut into as many stripes as the smallest node has ranks: so all of
/// these send at once, and the network carries what it would for one rank on each node, whatever their number.
///
/// all_ranks   of host tensors, among all ranks, and for nothing else; its for_group() makes the stripes' backends, and
///             those of nodes that have no other
/// intra_node  among this rank's node, its ranks ascending; null: none but that of `all_ranks`
/// node_of     by rank of `all_ranks`; spans_shared_nodes()
/// stripe      how a stripe is cut into chunks
/// introduced  whether what for_group() of `all_ranks` makes has to be introduced: then so has the result
///
/// Values are combined in rank order within a node, then between nodes as the stripes' backends do, in the accumulators
/// of reduce(): 16-bit floats are rounded once, integers come out as in rank order. Serves all collectives that are
/// reducible() but averages of 64-bit integers, whose sums no type holds; all_to_all where all nodes have as many
/// ranks; and, where nodes differ so much that blocks would be half padding, none that has blocks. Groups on one node
/// get that node's backend. Making and destroying it, but not its groups, is as collective as that of `all_ranks`.
/// Throws Error{backend}.
std::unique_ptr<Backend> two_level_backend(std::unique_ptr<Backend> all_ranks, std::unique_ptr<Backend> intra_node,
                                           std::vector<int> node_of, int rank, const ChunkRule& stripe,
                                           bool introduced = false);

}  // namespace kolo
