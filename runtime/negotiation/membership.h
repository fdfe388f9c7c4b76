#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/error.h>
#include <kolo/group.h>

#include "runtime/operation/submission.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// Which ranks of a group have joined, and which have left: as agreed, so the same on every rank at the same place of
/// the decisions. Ranks are session ranks.
class Membership {
 public:
  explicit Membership(std::shared_ptr<const GroupInfo> group) : group_(std::move(group)) {}

  const GroupInfo& group() const { return *group_; }

  /// A rank has joined. Returns whether all have: then none has any more.
  bool join(int rank);
  const RankSet& joined() const { return joined_; }
  bool joined(int rank) const { return joined_.contains(rank); }
  int last_to_join() const { return last_to_join_; }
  /// The ranks of the group that have joined (ascending).
  std::vector<int> absent() const;

  /// `begun`: where operations are matched by their order, how many the rank has begun.
  void leave(int rank, std::uint64_t begun);
  const RankSet& left() const { return left_; }
  bool any_left() const { return !left_.empty(); }
  bool all_left() const { return left_.size() == group_->size(); }
  /// How many operations all that have left have begun.
  std::uint64_t last_begun() const { return last_begun_; }
  /// How an operation, or the group, fails that needs a rank that has left.
  Failure left_failure(const Request& request) const;
  Failure left_failure() const;

  /// Why an operation cannot run although all have announced it: it needs a rank that has joined. Without the
  /// operation's name.
  std::optional<Failure> unfit(const Signature& signature) const;

 private:
  std::shared_ptr<const GroupInfo> group_;
  RankSet joined_;
  int last_to_join_ = -1;
  RankSet left_;
  int first_left_ = -1;
  std::uint64_t last_begun_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace kolo
