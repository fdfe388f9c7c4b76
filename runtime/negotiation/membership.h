#pragma once

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

  void leave(int rank);
  bool any_left() const { return !left_.empty(); }
  bool all_left() const { return left_.size() == group_->size(); }
  /// How an operation fails that needs a rank that has left.
  Failure left_failure(const Request& request) const;

  /// Why an operation cannot run although all have announced it: it needs a rank that has joined. Without the
  /// operation's name.
  std::optional<Failure> unfit(const Signature& signature) const;

 private:
  std::shared_ptr<const GroupInfo> group_;
  RankSet joined_;
  int last_to_join_ = -1;
  RankSet left_;
  int first_left_ = -1;
};

}  // namespace kolo
