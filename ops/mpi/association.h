#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ops/kernels/reduce.h"

namespace kolo {

/// The participants of a tree over nodes, as their numbers in the nodes' order: those from base() on are added to the
/// one that is base() below, then neighbours at distance 1, 2, 4, … are added, the lower first.
struct NodeTree {
  int nodes = 1;
  /// The largest power of two that is not above `nodes`.
  int base() const {
    int power = 1;
    while (power <= nodes / 2) power *= 2;
    return power;
  }
};

/// Where ranks are, by rank: those with the same number, any one, are together.
struct RankPlaces {
  std::vector<int> node_of{};    ///< empty: all are on one node
  std::vector<int> domain_of{};  ///< on cores that share a cache; empty: those of a node do
};

/// The order in which values of a group's ranks are combined: a function of where they are and of who takes part, for
/// all sizes and all ways to carry them. Within a cache's domain that is rank order, and within a node the order of
/// domains by their lowest ranks; then a NodeTree over nodes, in the order of theirs; places of which nobody takes part
/// do not count.
class Association final {
 public:
  /// `members`: of the group, as ranks of `places`.
  Association(const RankPlaces& places, const std::vector<int>& members);

  /// Whether every rank is on a node of its own: then partial sums are those of ranks.
  bool only_between_nodes() const { return nodes_.size() == ranks_; }

  /// reduce(), but for the order. `sources`: by rank of the group; null where a rank takes no part.
  void reduce(const Reduction& reduction, std::span<const void* const> sources, void* destination,
              std::size_t count) const;

 private:
  std::vector<std::vector<std::vector<int>>> nodes_;  // of each node the domains' ranks, ascending
  std::size_t ranks_;
  bool in_rank_order_;
};

}  // namespace kolo
