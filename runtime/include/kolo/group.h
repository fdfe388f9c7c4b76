#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kolo {

using GroupId = std::uint64_t;

/// agreed: groups made by new_group() and split(), whose numbers are hashes of what their members know; the world is 0.
/// pair: the two ranks of send() and recv(), which give its number.
enum class GroupKind : std::uint8_t { agreed, pair };

/// How the operations of a group's members find each other.
enum class Order : std::uint8_t {
  names,   ///< by name, whatever the order: the ranks negotiate
  program  ///< the n-th call of one member meets the n-th of the others; operations have no name
};

struct GroupOptions {
  Order order = Order::names;
};

/// Identifies a group on every rank.
struct GroupKey {
  GroupKind kind = GroupKind::agreed;
  GroupId id = 0;
  auto operator<=>(const GroupKey&) const = default;
};

/// The members of a group; equal on every member, except for `rank`.
struct GroupInfo {
  GroupId id = 0;
  std::string name;        ///< "world", "of ranks 0-2", "of ranks 0-2 (number 2)": for messages
  std::vector<int> ranks;  ///< session ranks of the members, in the order of their ranks in the group
  int rank = 0;            ///< index of this rank in `ranks`; -1 if it is no member
  GroupKind kind = GroupKind::agreed;
  Order order = Order::names;
  bool negotiated = false;  ///< of Order::program: all the same, under the numbers of the calls; see in_order()
  std::uint64_t turn = 0;   ///< how many groups of these ranks, in this order, the program had made before
  std::shared_ptr<const GroupInfo> world{};  ///< all ranks of the session that made it; null in the world itself

  GroupKey key() const { return {kind, id}; }
  bool is_world() const { return key() == GroupKey{}; }
  bool is_pair() const { return kind == GroupKind::pair; }
  bool member() const { return rank >= 0; }
  /// Whether a call begins where it is made: the ranks meet in host memory. Where they are on several nodes that have
  /// only control connections in common, it is negotiated.
  bool in_order() const { return order == Order::program && !negotiated; }
  int size() const { return static_cast<int>(ranks.size()); }
};

/// A set of ranks that run collectives together. A value; the default is the session's world.
class Group {
 public:
  Group() = default;
  explicit Group(std::shared_ptr<const GroupInfo> info) : info_(std::move(info)) {}

  /// Null for the default, which stands for the world of the session it is used with.
  const GroupInfo* info() const { return info_.get(); }
  const std::shared_ptr<const GroupInfo>& shared_info() const { return info_; }

 private:
  std::shared_ptr<const GroupInfo> info_;
};

}  // namespace kolo
