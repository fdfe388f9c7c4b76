#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kolo {

/// Where the ranks of a group are, as one of them sees it.
///
/// Rank i of a node belongs to stripe i modulo the number of stripes, and is its holder there if i is below that.
struct NodePlacement {
  std::vector<std::vector<int>> ranks;      ///< of each node, ascending; nodes in the order of their lowest ranks
  std::vector<std::pair<int, int>> places;  ///< by rank: its node, and its index there
  int node = 0;                             ///< this rank's
  int index = 0;                            ///< this rank's among those of its node

  const std::vector<int>& mine() const { return ranks[static_cast<std::size_t>(node)]; }
  int size() const { return static_cast<int>(mine().size()); }
  int nodes() const { return static_cast<int>(ranks.size()); }
  int ranks_in_all() const { return static_cast<int>(places.size()); }
  int rank() const { return mine()[static_cast<std::size_t>(index)]; }
  int node_of(int other) const { return places[static_cast<std::size_t>(other)].first; }
  int index_of(int other) const { return places[static_cast<std::size_t>(other)].second; }
  /// Stripes that a tensor is cut into: as many as the smallest node has ranks.
  int stripes() const;
  bool holds_stripe() const { return index < stripes(); }
  /// The most ranks of a node that belong to one stripe.
  int depth() const;
  /// Where each stripe, node and rank of it has a place.
  std::size_t cells() const {
    return static_cast<std::size_t>(stripes()) * ranks.size() * static_cast<std::size_t>(depth());
  }
  std::size_t cell_of(int other) const;
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
