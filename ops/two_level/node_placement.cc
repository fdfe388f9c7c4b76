#include "ops/two_level/node_placement.h"

#include <algorithm>
#include <map>

namespace kolo {

int NodePlacement::stripes() const {
  std::size_t smallest = ranks.front().size();
  for (const auto& members : ranks) smallest = std::min(smallest, members.size());
  return static_cast<int>(smallest);
}

int NodePlacement::depth() const {
  std::size_t largest = 0;
  for (const auto& members : ranks) largest = std::max(largest, members.size());
  return (static_cast<int>(largest) + stripes() - 1) / stripes();
}

std::size_t NodePlacement::cell_of(int other) const {
  const int held = stripes(), place = index_of(other);
  const auto stripe = static_cast<std::size_t>(place % held), step = static_cast<std::size_t>(place / held);
  return (stripe * ranks.size() + static_cast<std::size_t>(node_of(other))) * static_cast<std::size_t>(depth()) + step;
}

NodePlacement placement_of(const std::vector<int>& node_of, int rank) {
  NodePlacement placement;
  std::map<int, int> order;  // nodes are numbered by their lowest ranks
  for (int node : node_of) order.try_emplace(node, static_cast<int>(order.size()));
  placement.ranks.resize(order.size());
  for (std::size_t other = 0; other < node_of.size(); ++other) {
    const int node = order.at(node_of[other]);
    auto& members = placement.ranks[static_cast<std::size_t>(node)];
    placement.places.emplace_back(node, static_cast<int>(members.size()));
    if (static_cast<int>(other) == rank) placement.index = static_cast<int>(members.size());
    members.push_back(static_cast<int>(other));
  }
  placement.node = order.at(node_of[static_cast<std::size_t>(rank)]);
  return placement;
}

bool spans_shared_nodes(const std::vector<int>& node_of) {
  std::map<int, int> members;
  for (int node : node_of) ++members[node];
  return members.size() > 1 && members.size() < node_of.size();
}

std::vector<int> absent_in_node(const NodePlacement& placement, const std::vector<int>& absent, int node) {
  std::vector<int> here;
  const auto& members = placement.ranks[static_cast<std::size_t>(node)];
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (std::ranges::binary_search(absent, members[i])) here.push_back(static_cast<int>(i));
  }
  return here;
}

bool node_absent(const NodePlacement& placement, const std::vector<int>& absent, std::size_t node) {
  return std::ranges::all_of(placement.ranks[node], [&](int rank) { return std::ranges::binary_search(absent, rank); });
}

}  // namespace kolo
