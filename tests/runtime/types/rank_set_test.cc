// Sets of ranks, placements on nodes, and the tree along which a group agrees.

#include "runtime/types/rank_set.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "runtime/control/topology.h"
#include "tests/runtime/negotiation/negotiation_simulation.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;
using testing::nodes_of;

TEST(RankSetTest, PrintsRangesFromThreeRanksOn) {
  EXPECT_EQ(to_string(RankSet{}), "no rank");
  EXPECT_EQ(to_string(RankSet{3}), "rank 3");
  EXPECT_EQ(to_string(RankSet{2, 1}), "ranks 1, 2");
  EXPECT_EQ(to_string(RankSet{0, 1, 2}), "ranks 0-2");
  EXPECT_EQ(to_string(RankSet{5, 0, 2, 1}), "ranks 0-2, 5");
  EXPECT_EQ(to_string(RankSet{0, 2, 4, 5, 6, 7, 9}), "ranks 0, 2, 4-7, 9");
}

TEST(RankSetTest, AddsAndRemoves) {
  RankSet set = RankSet::range(2, 6);
  EXPECT_EQ(set.ranks(), (std::vector<int>{2, 3, 4, 5}));
  set.add(4);
  set.add(RankSet{0, 5, 9});
  EXPECT_EQ(set.ranks(), (std::vector<int>{0, 2, 3, 4, 5, 9}));
  set.remove(RankSet{2, 3, 7});
  EXPECT_EQ(set.ranks(), (std::vector<int>{0, 4, 5, 9}));
  EXPECT_TRUE(set.contains(9));
  EXPECT_FALSE(set.contains(2));
  EXPECT_EQ(set.size(), 4);
  EXPECT_TRUE(RankSet::range(3, 3).empty());
}

TEST(RankSetTest, IsTheSetThatItWasMadeOf) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RankSet set;
    std::set<int> model;
    for (int i = 0; i < 100; ++i) {
      const int first = static_cast<int>(random() % 60), end = first + static_cast<int>(random() % 6);
      const bool adds = random() % 3 != 0;
      adds ? set.add(RankSet::range(first, end)) : set.remove(RankSet::range(first, end));
      for (int rank = first; rank < end; ++rank) adds ? (void)model.insert(rank) : (void)model.erase(rank);
      ASSERT_EQ(set.ranks(), std::vector<int>(model.begin(), model.end()));
      ASSERT_EQ(set.size(), static_cast<int>(model.size()));
      ASSERT_EQ(set.contains(first), model.contains(first));
      ASSERT_EQ(set.contains(RankSet::range(first, end)),
                first == end || std::ranges::all_of(RankSet::range(first, end).ranks(),
                                                    [&](int rank) { return model.contains(rank); }));
      for (std::size_t range = 1; range < set.ranges().size(); ++range)
        ASSERT_GT(set.ranges()[range].first, set.ranges()[range - 1].last + 1) << "as few ranges as possible";
    }
  }
}

TEST(RankSetTest, TextDoesNotGrowWithTheNumberOfRanges) {
  RankSet every_other;
  for (int rank = 0; rank < 100'000; rank += 2) every_other.add(rank);
  EXPECT_LT(to_string(every_other).size(), 200u);
  EXPECT_NE(to_string(every_other).find("44, 46 and 49976 more"), std::string::npos) << to_string(every_other);
}

std::string fake_nodes_error(int ranks, std::string_view text) {
  Topology topology = nodes_of({ranks});
  return error_text([&] { fake_nodes(topology, text); }, ErrorCode::invalid_argument);
}

TEST(FakeNodes, PlacesRanksInOrder) {
  Topology topology = nodes_of({6});
  fake_nodes(topology, "");
  EXPECT_EQ(topology.nodes(), 1);
  fake_nodes(topology, "3,1,2");
  EXPECT_EQ(topology.nodes(), 3);
  EXPECT_EQ(topology.node_ranks(1), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(topology.node_ranks(3), (std::vector<int>{3}));
  EXPECT_EQ(topology.node_ranks(4), (std::vector<int>{4, 5}));
}

TEST(FakeNodes, RefusesWhatDoesNotFit) {
  const std::string advice = "; give the number of ranks on each node, such as 2,2";
  EXPECT_EQ(fake_nodes_error(4, "2,1"), "KOLO_FAKE_NODES is '2,1' (it adds up to 3 ranks, there are 4)" + advice);
  EXPECT_EQ(fake_nodes_error(4, "5"), "KOLO_FAKE_NODES is '5' (it adds up to 5 ranks, there are 4)" + advice);
  for (const char* text : {"two", "2;2", "4,", ",4", "0,4", "-1,5", "2,,2", "2 2", "99999999999"}) {
    EXPECT_EQ(fake_nodes_error(4, text),
              "KOLO_FAKE_NODES is '" + std::string(text) + "' (not a list of positive numbers)" + advice);
  }
}

TEST(FakeNodes, DoesNotOverflow) {
  EXPECT_EQ(fake_nodes_error(4, "2147483647,2147483647,6").substr(0, 52),
            "KOLO_FAKE_NODES is '2147483647,2147483647,6' (it add");
}

/// Every member but the root is the child of its parent, and of nobody else; subtrees partition the ranks below.
void check_tree(const Topology& topology, const std::vector<int>& members) {
  std::vector<TreePosition> tree;
  int roots = 0;
  for (int rank : members) {
    tree.push_back(tree_position(topology, members, rank));
    EXPECT_EQ(tree.back().rank, rank);
    if (tree.back().root()) {
      ++roots;
      EXPECT_EQ(rank, members.front());
    }
  }
  ASSERT_EQ(roots, 1);
  const auto of = [&](int rank) -> const TreePosition& {
    return tree[static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin())];
  };
  std::vector<int> found_as_child;
  for (const TreePosition& position : tree) {
    ASSERT_EQ(position.subtrees.size(), position.children.size() + 1);
    EXPECT_EQ(position.subtrees[0], RankSet{position.rank});
    RankSet everybody;
    int total = 0;
    for (const RankSet& subtree : position.subtrees) {
      everybody.add(subtree);
      total += subtree.size();
    }
    EXPECT_EQ(everybody.size(), total) << "subtrees overlap";
    if (position.root()) {
      EXPECT_EQ(everybody.ranks(), members);
    } else {
      const TreePosition& parent = of(position.parent);
      const auto place = std::find(parent.children.begin(), parent.children.end(), position.rank);
      ASSERT_NE(place, parent.children.end()) << "rank " << position.rank << " is no child of its parent";
      EXPECT_EQ(parent.subtrees[static_cast<std::size_t>(place - parent.children.begin()) + 1], everybody);
    }
    int on_other_nodes = 0;
    for (int child : position.children) {
      EXPECT_EQ(of(child).parent, position.rank);
      found_as_child.push_back(child);
      on_other_nodes += topology.places[static_cast<std::size_t>(child)].node !=
                        topology.places[static_cast<std::size_t>(position.rank)].node;
    }
    EXPECT_LE(on_other_nodes, TreePosition::tree_fan_out);
  }
  std::sort(found_as_child.begin(), found_as_child.end());
  EXPECT_EQ(found_as_child, (std::vector<int>(members.begin() + 1, members.end())));
}

TEST(Tree, IsATreeForEveryPlacement) {
  std::mt19937_64 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    Topology topology;
    const int ranks = draw(1, 60), nodes = draw(1, ranks);
    std::vector<int> names(static_cast<std::size_t>(nodes), -1);  // nodes are numbered by their lowest rank
    int named = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      int& name = names[static_cast<std::size_t>(draw(0, nodes - 1))];
      if (name < 0) name = named++;
      topology.places.push_back({name, "host", 1});
    }
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) {
      if (round % 2 == 0 || draw(0, 2) > 0 || rank == ranks - 1) members.push_back(rank);
    }
    check_tree(topology, members);
  }
}

TEST(Tree, LeadersStandBetweenNodes) {
  const Topology topology = nodes_of({2, 3, 1});
  const std::vector<int> everybody{0, 1, 2, 3, 4, 5};
  const TreePosition root = tree_position(topology, everybody, 0);
  EXPECT_EQ(root.children, (std::vector<int>{1, 2, 5}));
  EXPECT_EQ(root.subtrees[2], RankSet::range(2, 5));
  const TreePosition leader = tree_position(topology, everybody, 2);
  EXPECT_EQ(leader.parent, 0);
  EXPECT_EQ(leader.children, (std::vector<int>{3, 4}));
}

}  // namespace
}  // namespace kolo
