#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/ready_table.h"

namespace kolo {

/// At the root of a group's tree: when each tensor of the plan was used last, and which ones the ranks are to forget.
/// Pure state.
///
/// The plan holds as many tensors as there is room for, and a few signatures of each name; the least recently used make
/// room for new ones. Where many of those that were forgotten come back, as of a program with more tensors in a step,
/// the room doubles.
class Recency {
 public:
  explicit Recency(std::size_t room) : room_(room) {}

  void used(TensorNumber number) {
    if (number >= last_use_.size()) last_use_.resize(number + 1);
    last_use_[number] = ++uses_;
  }
  void defined(TensorNumber number, const PlanCache& plan);

  /// Whether there is too much.
  bool crowded(const PlanCache& plan) const {
    return plan.size() > room_ || once_.size() > most_changes || !crowded_.empty();
  }
  /// What to forget then; nothing that a rank has announced, as far as the table knows.
  std::vector<TensorNumber> excess(const PlanCache& plan, const ReadyTable& table);

 private:
  static constexpr std::size_t most_signatures = 16;  // of a name
  static constexpr std::size_t most_changes = 64;
  static constexpr std::size_t most_room = 1 << 20;

  void oldest(std::vector<TensorNumber>& numbers, std::size_t count) const;
  void forget(const std::vector<TensorNumber>& numbers, const PlanCache& plan);

  std::size_t room_;
  std::uint64_t uses_ = 0;
  std::vector<std::uint64_t> last_use_;        // by number
  std::list<TensorNumber> once_;               // of changes of groups, which do not come back
  std::vector<std::string> crowded_;           // names with too many signatures
  std::unordered_set<std::size_t> forgotten_;  // hashes of names
  std::size_t defined_ = 0, came_back_ = 0;    // since the room was last looked at
};

}  // namespace kolo
