#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <kolo/group.h>

namespace kolo {

/// Of all ranks of a session.
std::shared_ptr<const GroupInfo> group_of_all(int rank, int ranks);

/// The groups that this rank's program has made. Members need not agree to make one: its number follows from its ranks,
/// from how it is ordered, and from how many such groups came before. Thread-safe.
class ProgramGroups {
 public:
  /// `world`: the group of all ranks, of which this is `rank`. `apart`: by rank, the node, where nodes have nothing but
  /// control connections in common; empty: they have.
  ProgramGroups(std::shared_ptr<const GroupInfo> world, int rank, std::vector<int> apart = {})
      : world_(std::move(world)), rank_(rank), apart_(std::move(apart)) {}

  /// The description of a group of these session ranks, in this order, on this rank. Pure. Throws
  /// Error{invalid_argument}.
  std::shared_ptr<const GroupInfo> describe(std::vector<int> ranks, Order order, std::uint64_t turn) const;

  /// The program's next group of these ranks. Where this rank is no member that costs nothing.
  std::shared_ptr<const GroupInfo> make(std::vector<int> ranks, Order order);

  /// The group is of no more use here.
  void remove(const GroupInfo& group);

  /// Whether the program has made it, and not removed it.
  bool has(const GroupInfo& group) const;
  /// Whether the program has removed it: else it has it, or may still make it.
  bool had(const GroupInfo& group) const;

 private:
  static std::uint64_t hash(const std::vector<int>& ranks, Order order);

  const std::shared_ptr<const GroupInfo> world_;
  const int rank_;
  const std::vector<int> apart_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint64_t> made_;  // how many, by ranks and order
  std::unordered_set<GroupId> here_;
};

}  // namespace kolo
