#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/types/rank_set.h"

namespace kolo {

/// Which ranks share a node, and where each runs. Equal on all ranks.
struct Topology {
  struct Place {
    int node = 0;      ///< nodes are numbered in the order of their lowest rank
    std::string host;  ///< for messages
    int pid = 0;
    int machine = 0;  ///< the real node, numbered likewise, where `node` is pretended or cannot share memory
  };
  std::vector<Place> places;  ///< by session rank

  int size() const { return static_cast<int>(places.size()); }
  int nodes() const;
  /// "rank 1 (host h, pid 12)".
  std::string name(int rank) const;
  /// The ranks of `rank`'s node, ascending.
  std::vector<int> node_ranks(int rank) const;
};

/// This host's, cut to 63 bytes.
std::string host_name();

/// Replaces the nodes by those of KOLO_FAKE_NODES: "2,2" puts ranks 0-1 and 2-3 on different nodes. Empty text: no
/// change. Throws Error{invalid_argument} if the text is malformed or does not add up to the number of ranks.
void fake_nodes(Topology& topology, std::string_view text);

/// One rank's neighbours in the tree along which a group agrees: the ranks of a node below their leader (the node's
/// lowest member), the leaders in a tree of `tree_fan_out`, the first leader at the root.
struct TreePosition {
  static constexpr int tree_fan_out = 4;

  int rank = 0;                   ///< this rank
  int parent = -1;                ///< -1 at the root
  std::vector<int> children;      ///< neighbours below
  std::vector<RankSet> subtrees;  ///< subtrees[0] is this rank alone; subtrees[i+1] is children[i] and all below

  bool root() const { return parent < 0; }
  template <class Call>
  void for_each_neighbour(Call&& call) const {
    if (!root()) call(parent);
    for (const int child : children) call(child);
  }
};

/// The position of `rank` among `members` (ascending session ranks).
TreePosition tree_position(const Topology& topology, std::span<const int> members, int rank);

}  // namespace kolo
