#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "ops/mailbox.h"
#include "runtime/coordinator/completions.h"
#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/losses.h"

namespace kolo {

/// Sends and receives of ordered groups: what has no name and is not negotiated. Each is a parcel of this rank's
/// mailbox, over lanes of the world's backends. On GPUs the mailbox only matches them: then each rank submits a send or
/// receive of one name to the group of the pair, which both do in the order in which the sender is bound, and what the
/// program has submitted is complete with that.
class Mail {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Mail(PendingQueue& queue, Groups& groups, Completions& completions, const Losses& losses, ControlChannel& control);

  /// `known`: this rank has the group.
  void submit(const SubmissionPtr& submission, bool known);
  /// Its handle goes: it is withdrawn, unless its partner is known, and stays so.
  void withdraw(const SubmissionPtr& submission);

  /// Moves what can be moved. Returns whether anything was; looks several times before it says no.
  bool step();
  /// Fails what is overdue, what waits for a rank that has left, and what is of groups that have lost one. Returns
  /// whether anything is.
  bool look(Time now);
  Time next() const { return next_; }
  /// All that is in flight fails; or only what is negotiated, on GPUs.
  void fail(const Failure& failure, bool all = true);
  /// What is in flight in a group that this rank abandons fails, and so does what comes later.
  void end_group(const GroupInfo& group, const Failure& failure);
  /// The program has removed the group: nothing more comes.
  void forget(GroupId group) {
    ended_.erase(group);
    left_ = -1;
  }
  /// All ranks leave: what has no partner never will. Returns whether nothing is left that has one.
  bool leave();

  bool busy() const { return !items_.empty(); }
  bool has_work() const { return mailbox_.has_work(); }
  bool needs_polling() const { return mailbox_.needs_polling(); }

 private:
  struct Item : Parcel {
    SubmissionPtr submission;
    std::optional<Time> due;
    bool unwanted = false;             // its handle goes, or its group, though it is matched
    std::optional<Failure> ends_with;  // of its group
  };

  std::optional<Failure> failure_of(const Request& request) const;
  static bool is_bound(const Item& item);
  bool has_left(int peer, const GroupInfo& group) const;
  void no_longer_wants(Item& item);
  std::optional<Failure> left_failure(const Item& item) const;
  bool finish_all();
  void hand_over(const Item& item);
  void end(const SubmissionPtr& submission, const Failure* failure);

  PendingQueue& queue_;
  Groups& groups_;
  Completions& completions_;
  const Losses& losses_;
  ControlChannel& control_;
  Mailbox mailbox_;
  std::unordered_map<const Submission*, std::unique_ptr<Item>> items_;
  std::map<GroupId, Failure> ended_;  // groups that were abandoned and not removed, and how they fail
  Time next_ = Time::max();
  std::size_t lost_ = 0;     // ranks whose loss is dealt with
  std::ptrdiff_t left_ = 0;  // the same of those that have left; -1: look again
};

}  // namespace kolo
