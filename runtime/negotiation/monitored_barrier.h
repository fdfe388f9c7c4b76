#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <kolo/group.h>

#include "runtime/negotiation/messages.h"
#include "runtime/operation/submission.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// Monitored barriers of one group, on one rank: who waits here, and, at the root of the tree, who has come. Pure
/// state.
///
/// Unlike other announcements, those of a monitored barrier go up one by one: so the root can name who is missing when
/// a rank's time-out is over. Who comes after that gets the same error at once.
class MonitoredBarrier {
 public:
  explicit MonitoredBarrier(std::shared_ptr<const GroupInfo> group) : group_(std::move(group)) {}

  /// The program has come. False if this barrier has failed already: `failure_of` says how.
  bool wait(const SubmissionPtr& submission);
  std::optional<Failure> failure_of(const std::string& name) const;

  // At the root: each returns the decision it leads to, if any.
  std::optional<BarrierDone> came(const BarrierArrived& record);
  std::optional<BarrierDone> overdue(const BarrierTimeout& record);
  std::vector<BarrierDone> joined(const RankSet& ranks);

  /// Applies a decision. Returns the submission that waits for it here, if any.
  SubmissionPtr released(const BarrierDone& record);

  std::vector<SubmissionPtr> take_all();
  bool empty() const { return waiting_.empty(); }

 private:
  bool all_here(const RankSet& came) const;

  std::shared_ptr<const GroupInfo> group_;
  std::map<std::string, SubmissionPtr> waiting_;
  std::map<std::string, RankSet> came_;    // at the root
  std::map<std::string, Failure> failed_;  // barriers that ended without this rank, or, at the root, without some
  RankSet joined_;
};

}  // namespace kolo
