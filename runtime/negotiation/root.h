#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/negotiation/census.h"
#include "runtime/negotiation/fusion.h"
#include "runtime/negotiation/membership.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/plan_learner.h"
#include "runtime/negotiation/ready_table.h"
#include "runtime/negotiation/recency.h"

namespace kolo {

/// What only the root of a group's tree does: it turns what is complete there into decisions.
///
/// A tensor that is new is held back while the run of this rank's program that it belongs to is open, so that it gets
/// its place in a bucket at once.
class Root {
 public:
  /// Hands a decision to every rank. When it returns, plan, table and membership are as the decision says.
  using Decide = std::function<void(const DownMessage&)>;

  /// `room`: the number of tensors that the plan may hold. `tunes`: the threshold, where no layout matters.
  Root(const PlanCache& plan, ReadyTable& table, const Membership& membership, std::int64_t fusion_bytes, bool tunes,
       std::size_t room, Decide decide)
      : plan_(plan),
        table_(table),
        membership_(membership),
        learner_(fusion_bytes, tunes ? PlanLearner::Of::others_tuned : PlanLearner::Of::others),
        layouts_(fusion_bytes, PlanLearner::Of::layouts),
        census_(membership),
        recency_(room),
        decide_(std::move(decide)) {}

  // This rank's program.
  void submitted(const SubmissionPtr& submission, bool is_new) {
    if (membership_.group().negotiated) return;  // what has no name does not come again
    (layout_matters(submission->request.signature) ? layouts_ : learner_).submitted(submission, is_new);
  }
  /// The program waits for something, in whatever group, or polls it.
  void fence() { layouts_.waited(); }
  void looked(const Submission& submission) { layouts_.looked(submission.request.name()); }
  /// Whether it has looked at all whose layout_matters(): else a fence may end a run, though nothing waits here.
  bool all_looked_at() const { return layouts_.all_looked_at(); }
  /// The program has waited for something in this group: a run of submissions ends.
  void end_run() { learner_.waited(); }
  std::size_t length_of_run() const { return learner_.length_of_run(); }
  /// Whether a rank waits for something that is complete, and held back until this rank's program ends its run.
  bool holds_up_others() const;

  // What other ranks ask.
  void waiting(const Waiting& message);
  void split(const SplitBucket& message);
  /// The ranks forget the name's numbers, with the next decisions.
  void conflict(const Conflict& message) { conflicts_.insert(message.name); }
  void awaited(const Awaited& message);
  void overdue(const Overdue& message);
  void present(const Presence& message) { census_.present(message); }

  /// The ranks have agreed on something about this name: it is held back no longer.
  void release(const std::string& name);
  void defined(TensorNumber number) { recency_.defined(number, plan_); }
  /// What was announced in full is announced anew.
  void forgot() { held_.clear(); }

  /// Looks once at what is complete, and decides. Returns whether the plan has changed, which may complete more.
  bool decide();
  /// Whether decide() may do something, the table aside.
  bool has_news() const {
    return learner_.run_ended() || layouts_.run_ended() || !held_.empty() || census_.has_news() || !conflicts_.empty();
  }

 private:
  void decide(const std::vector<Ready>& ready);
  void decide(const Announcement& announcement);
  void reject(const std::string& name, OpKind kind, Failure failure);
  void decide_held();
  bool decide_overdue();
  std::vector<TensorNumber> in_conflict();
  bool forget(const Forget& message);
  std::optional<Failure> unfit(TensorNumber number, const std::vector<SizesOfRanks>& news) const;

  const PlanCache& plan_;
  ReadyTable& table_;
  const Membership& membership_;
  PlanLearner learner_, layouts_;  // of tensors whose layout does not matter, and of the others
  Census census_;
  Recency recency_;
  Decide decide_;
  std::uint64_t runs_looked_at_ = 0;          // of the learner's, for held_
  std::map<std::string, Announcement> held_;  // complete, of the program's open run
  std::set<std::string> wanted_;              // names without a number that some rank waits for
  std::set<std::string> conflicts_;           // names that ranks have announced in different ways
  std::map<BucketId, std::set<int>> askers_;  // ranks that have waited for long, since Awaited was last sent
};

}  // namespace kolo
