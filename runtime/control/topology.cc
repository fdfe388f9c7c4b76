#include "runtime/control/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/types/rank_counts.h"

namespace kolo {
namespace {

/// The members by node, without empty nodes, ordered by first member.
std::vector<std::vector<int>> members_by_node(const Topology& topology, std::span<const int> members) {
  std::vector<std::vector<int>> nodes;
  std::vector<int> index(static_cast<std::size_t>(topology.nodes()), -1);
  for (int rank : members) {
    int& node = index[static_cast<std::size_t>(topology.places[static_cast<std::size_t>(rank)].node)];
    if (node < 0) {
      node = static_cast<int>(nodes.size());
      nodes.emplace_back();
    }
    nodes[static_cast<std::size_t>(node)].push_back(rank);
  }
  return nodes;
}

}  // namespace

int Topology::nodes() const {
  int last = -1;
  for (const Place& place : places) last = std::max(last, place.node);
  return last + 1;
}

std::string Topology::name(int rank) const {
  const Place& place = places.at(static_cast<std::size_t>(rank));
  return fmt::format("rank {} (host {}, pid {})", rank, place.host, place.pid);
}

std::vector<int> Topology::node_ranks(int rank) const {
  std::vector<int> result;
  for (int other = 0; other < size(); ++other) {
    if (places[static_cast<std::size_t>(other)].node == places[static_cast<std::size_t>(rank)].node) {
      result.push_back(other);
    }
  }
  return result;
}

std::string host_name() {
  char name[64] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void fake_nodes(Topology& topology, std::string_view text) {
  if (text.empty()) return;
  const auto node_of = parts_of_ranks("KOLO_FAKE_NODES", "on each node", text, topology.size());
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) topology.places[rank].node = node_of[rank];
}

TreePosition tree_position(const Topology& topology, std::span<const int> members, int rank) {
  const auto nodes = members_by_node(topology, members);
  const auto mine = std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) {
    return std::find(node.begin(), node.end(), rank) != node.end();
  });
  TreePosition position;
  position.rank = rank;
  position.subtrees.push_back({rank});
  if (mine->front() != rank) {
    position.parent = mine->front();
    return position;
  }
  const auto index = mine - nodes.begin();
  if (index > 0) position.parent = nodes[static_cast<std::size_t>((index - 1) / TreePosition::tree_fan_out)].front();
  for (int peer : *mine) {
    if (peer == rank) continue;
    position.children.push_back(peer);
    position.subtrees.push_back({peer});
  }
  const auto below = [&](auto&& self, std::size_t node) -> RankSet {
    RankSet result;
    if (node >= nodes.size()) return result;
    for (int member : nodes[node]) result.add(member);
    for (int i = 1; i <= TreePosition::tree_fan_out; ++i) {
      result.add(self(self, node * TreePosition::tree_fan_out + static_cast<std::size_t>(i)));
    }
    return result;
  };
  for (int i = 1; i <= TreePosition::tree_fan_out; ++i) {
    const auto child = static_cast<std::size_t>(index) * TreePosition::tree_fan_out + static_cast<std::size_t>(i);
    if (child >= nodes.size()) break;
    position.children.push_back(nodes[child].front());
    position.subtrees.push_back(below(below, child));
  }
  return position;
}

}  // namespace kolo
