#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/control/topology.h"
#include "runtime/negotiation/messages.h"

namespace kolo {

/// Which way a message travels along an edge of the tree; or that it says what the group is, which its receiver may not
/// know.
enum class Direction : std::uint8_t { to_parent, to_child, of_group };

/// What one position of the tree has to send to its neighbours, encoded, until it is sent.
class TreeLink {
 public:
  explicit TreeLink(const TreePosition& position)
      : parent_(position.parent), children_(position.children), to_child_(position.children.size()) {}

  void to_parent(const UpMessage& message) { write(to_parent_, message); }
  /// `child` counts from 0.
  void to_child(std::size_t child, const DownMessage& message) { write(to_child_[child], message); }
  void to_children(const DownMessage& message) {
    for (Writer& child : to_child_) write(child, message);
  }

  bool empty() const {
    return to_parent_.empty() && std::ranges::all_of(to_child_, [](const Writer& child) { return child.empty(); });
  }

  /// Calls send(rank, direction, bytes) for each neighbour there is something for, which is forgotten then.
  template <class Send>
  void send(Send&& send) {
    if (!to_parent_.empty()) send(parent_, Direction::to_parent, to_parent_.bytes());
    to_parent_.clear();
    for (std::size_t child = 0; child < to_child_.size(); ++child) {
      if (!to_child_[child].empty()) send(children_[child], Direction::to_child, to_child_[child].bytes());
      to_child_[child].clear();
    }
  }

 private:
  static void write(Writer& to, const auto& message) {
    to.all_or_nothing([&] { encode(to, message); });
  }

  int parent_;
  std::vector<int> children_;
  Writer to_parent_;
  std::vector<Writer> to_child_;
};

}  // namespace kolo
