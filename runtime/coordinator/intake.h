#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/coordinator/completions.h"
#include "runtime/coordinator/deadlines.h"
#include "runtime/coordinator/group_changes.h"
#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/mail.h"
#include "runtime/coordinator/pairs.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// Hands on what the program has queued, in the program's order: to the negotiator of its group; to the group's
/// executor, where operations are matched by their order; to the mail, where messages have tags. What is for a group
/// that is not open yet waits in front of it.
class Intake {
 public:
  /// `current`: the group whose operations are being handled, for whoever handles errors.
  Intake(PendingQueue& queue, Groups& groups, GroupChanges& changes, Pairs& pairs, Mail& mail, Deadlines& deadlines,
         Completions& completions, Counters& counters, GroupState*& current)
      : queue_(queue),
        groups_(groups),
        changes_(changes),
        pairs_(pairs),
        mail_(mail),
        deadlines_(deadlines),
        completions_(completions),
        counters_(counters),
        current_(current) {}

  /// Takes all that is queued; if that has been given up, it fails. Returns whether there was anything.
  bool announce(const std::optional<Failure>& given_up);
  /// The group is open, or will never be: what was kept is announced.
  void release(GroupState& group);

  /// Whether an error has left some of what was queued.
  bool has_more() const { return announced_ < drained_.size(); }
  /// Whether an operation has begun that was not negotiated, since this was asked last: it is to be started.
  bool take_begun() { return std::exchange(begun_, false); }
  /// Whether the last that was taken is all that begins without being negotiated.
  bool took_nothing_else() const { return !negotiated_; }
  /// How many operations there were.
  std::size_t submissions() const { return submissions_; }
  /// The program's departure, until take_departure(); null if it has not left.
  const SubmissionPtr& departure() const { return departure_; }
  SubmissionPtr take_departure() { return std::exchange(departure_, nullptr); }

 private:
  void announce(const PendingQueue::Item& item);
  void announce_to_mail(const PendingQueue::Item& item);
  void flush(GroupState* group, const PendingQueue::Item& item);
  void depart(const PendingQueue::Item& item);
  GroupState* group_of(const SubmissionPtr& submission);
  bool hold(GroupState& group, const PendingQueue::Item& item);
  void begin(GroupState& group, const SubmissionPtr& submission);
  void submit(GroupState& group, const SubmissionPtr& submission, bool held = false);

  PendingQueue& queue_;
  Groups& groups_;
  GroupChanges& changes_;
  Pairs& pairs_;
  Mail& mail_;
  Deadlines& deadlines_;
  Completions& completions_;
  Counters& counters_;
  GroupState*& current_;
  std::vector<PendingQueue::Item> drained_;
  std::size_t announced_ = 0;  // of those
  std::size_t submissions_ = 0;
  bool begun_ = false;
  bool negotiated_ = false;  // something of what was taken last
  SubmissionPtr departure_;
};

}  // namespace kolo
