#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/negotiation/membership.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/plan_learner.h"
#include "runtime/negotiation/ready_table.h"

namespace kolo {

/// What only the root of a group's tree does: it turns what is complete there into decisions.
///
/// A tensor that is new is held back while the run of this rank's program that it belongs to is open, so that it gets
/// its place in a bucket at once.
class Root {
 public:
  /// Hands a decision to every rank. When it returns, plan, table and membership are as the decision says.
  using Decide = std::function<void(const DownMessage&)>;

  Root(const PlanCache& plan, ReadyTable& table, const Membership& membership, std::int64_t fusion_bytes, Decide decide)
      : plan_(plan), table_(table), membership_(membership), learner_(fusion_bytes), decide_(std::move(decide)) {}

  // This rank's program.
  void submitted(const SubmissionPtr& submission, bool is_new) { learner_.submitted(submission, is_new); }
  /// The program has waited for something, in this group or another: a run of submissions ends.
  void end_run() { learner_.waited(); }
  std::size_t length_of_run() const { return learner_.length_of_run(); }
  /// Whether a rank waits for something that is complete, and held back until this rank's program ends its run.
  bool holds_up_others() const;

  // What other ranks ask.
  void waiting(const Waiting& message) { wanted_.insert(message.name); }
  void split(const SplitBucket& message);

  /// The ranks have agreed on something about this name: it is held back no longer.
  void release(const std::string& name);

  /// Looks once at what is complete, and decides. Returns whether the plan has changed, which may complete more.
  bool decide();
  /// Whether decide() may do something, the table aside.
  bool has_news() const { return learner_.run_ended() || !held_.empty(); }

 private:
  void decide(const std::vector<Ready>& ready);
  void decide(const Announcement& announcement);
  void decide_held();
  std::optional<Failure> unfit(TensorNumber number, const std::vector<SizesOfRanks>& news) const;

  const PlanCache& plan_;
  ReadyTable& table_;
  const Membership& membership_;
  PlanLearner learner_;
  Decide decide_;
  std::uint64_t runs_looked_at_ = 0;          // of the learner's, for held_
  std::map<std::string, Announcement> held_;  // complete, of the program's open run
  std::set<std::string> wanted_;              // names without a number that some rank waits for
};

}  // namespace kolo
