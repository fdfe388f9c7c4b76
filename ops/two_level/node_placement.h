#pragma once

#include <vector>

namespace kolo {

/// Where the ranks of a group are, as one of them sees it.
struct NodePlacement {
  std::vector<std::vector<int>> ranks;  ///< of each node, ascending; nodes in the order of their lowest ranks
  int node = 0;                         ///< this rank's
  int index = 0;                        ///< this rank's among those of its node

  const std::vector<int>& mine() const { return ranks[static_cast<std::size_t>(node)]; }
  /// Stripes that a tensor is cut into: as many as the smallest node has ranks.
  int stripes() const;
  bool holds_stripe() const { return index < stripes(); }
};

/// `node_of`: each rank's node, by any numbers.
NodePlacement placement_of(const std::vector<int>& node_of, int rank);

/// Whether there is anything to do in two levels: several nodes, one of them with several ranks.
bool spans_shared_nodes(const std::vector<int>& node_of);

/// Node-local indices of the absent ranks of `node`; `absent` is ascending.
std::vector<int> absent_in_node(const NodePlacement& placement, const std::vector<int>& absent, int node);
/// True if every rank of `node` is absent.
bool node_absent(const NodePlacement& placement, const std::vector<int>& absent, std::size_t node);

}  // namespace kolo
