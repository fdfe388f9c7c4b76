#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/control/channel.h"
#include "runtime/coordinator/groups.h"

namespace kolo {

/// Ranks that are gone without having left: every group that has one fails, here and on the ranks that this one can
/// tell. Each rank acts on what it notices itself, since the rank that is gone may be the one that would decide.
///
/// A rank whose program ends by an error says so, and a rank that leaves may be gone before all others know that all
/// leave: so a while passes between the notice and the failure, in which word of that may come on other ways.
class Losses {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Losses(ControlChannel& control, Groups& groups) : control_(control), groups_(groups) {}

  /// A backend has found out that a rank of the group will do no more, and not which, or why: that rank has told
  /// others.
  void unexplained(GroupState& group, const Failure& failure);
  /// A device or its library has failed on this rank: reports it to the group; if another rank may be the cause
  /// (ErrorCode::aborted), only when word of that one has had time to come, and has not.
  void report(GroupState& group, const Failure& fault);
  /// Others have noticed that a rank is gone.
  void heard(const Gone& gone, Time now) { notice(gone, now + ControlChannel::word_comes_within); }
  /// How what is in a group fails since a member is gone. `acted_on`: only if its groups have failed by that.
  std::optional<Failure> failure_of(const GroupInfo& group, bool acted_on = false) const;
  /// This rank leaves, and acts on nothing more: unless all have left, who is gone is lost.
  void leave() noexcept;
  /// For how many ranks the groups that have them have failed. Any thread.
  std::size_t lost() const { return lost_; }
  /// Whether any rank is gone.
  bool any() const { return !gone_.empty(); }
  /// Takes what the channel has noticed, and acts on what was noticed long enough ago. `leaving`: this rank waits for
  /// all to leave.
  void look(Time now, bool leaving);
  /// When look() must be called again, at the latest.
  Time next() const;

 private:
  struct Noticed {
    std::optional<Time> acts_at;  // from the next look() on
    std::function<void()> act;
  };
  void notice(const Gone& gone, Time acts_at);
  /// Once word of a rank that is gone has had time to come, and has not: on what is left of the group.
  void act_unless_explained(const GroupInfo& group, std::function<void(Negotiator&)> act);
  void fail_groups_of(int rank);

  ControlChannel& control_;
  Groups& groups_;
  std::vector<Noticed> noticed_;     // and not acted on
  std::map<int, std::string> gone_;  // how, by rank
  std::set<int> acted_on_;           // of these
  std::atomic<std::size_t> lost_ = 0;
};

}  // namespace kolo
