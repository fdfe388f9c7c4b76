#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kolo/group.h>

#include "runtime/control/topology.h"
#include "runtime/negotiation/membership.h"
#include "runtime/negotiation/messages.h"
#include "runtime/negotiation/monitored_barrier.h"
#include "runtime/negotiation/outstanding.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/ready_table.h"
#include "runtime/negotiation/root.h"
#include "runtime/negotiation/tree_link.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// What the ranks have agreed on since the last look, in agreed order where order matters.
struct Decisions {
  struct Failed {
    SubmissionPtr submission;
    Failure failure;
  };
  struct Faulted {
    std::size_t before;  ///< its place among `run`
    Failure failure;
  };
  std::vector<AgreedBucket> run;           ///< to start, in this order
  std::vector<SubmissionPtr> to_allocate;  ///< their outputs are to be made, then they are to be submitted again
  std::vector<Failed> failed;
  std::vector<SubmissionPtr> withdrawn;        ///< taken back before anything was agreed
  std::vector<SubmissionPtr> completed;        ///< there is nothing to move: monitored barriers, joins
  std::vector<std::string> without_this_rank;  ///< what ran or failed while this rank had joined and moves no data
  std::vector<Faulted> faults;                 ///< what runs on a device and was agreed on before fails
  std::optional<Failure> broken;               ///< the group is of no more use: fail what is running too

  bool empty() const {
    return run.empty() && to_allocate.empty() && failed.empty() && withdrawn.empty() && completed.empty() &&
           without_this_rank.empty() && faults.empty() && !broken;
  }
};

/// One rank's part in agreeing, for one group, on what runs in which order. Pure state: messages in, messages and
/// decisions out.
///
/// Announcements travel up a tree (see TreePosition), merged at each position until its whole subtree has made them.
/// The root turns what is complete into decisions (see Root). Decisions travel down, and every rank applies the same
/// ones in the same order; a position hands them on before it sends anything that depends on them. So an operation
/// costs one message up and one down each edge, whatever the number of ranks, and nobody waits for what is not ready.
class Negotiator {
 public:
  Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes);

  // The local program, in its order.
  void submit(const SubmissionPtr& submission);
  /// Votes again, after the output of an agreed operation was made (or, if it has an objection, was not).
  void submit_again(const SubmissionPtr& submission);
  void flush(const SubmissionPtr& submission, std::uint64_t sequence);
  /// The program has waited for something, in this group or another: a run of submissions ends.
  void end_run();
  /// The program is blocked: flush every incomplete bucket.
  void flush_all();
  /// The program has waited for a monitored barrier for as long as it wanted.
  void time_out(const SubmissionPtr& submission, double seconds);
  void withdraw(const SubmissionPtr& submission);
  void leave(bool abandoned);
  void fail_group(const Failure& failure);
  /// Something of this rank's device failed, in a way that the group survives.
  void report_fault(const Failure& failure);

  // The neighbours: one message each, as made by send() there. Throw Error{backend} on malformed ones.
  void receive_from_parent(Reader& reader);
  void receive_from_child(int neighbour, Reader& reader);

  /// Turns what has become complete into decisions (at the root) or announcements to the parent, until nothing is left.
  void decide();

  /// Calls send(rank, direction, bytes) for each neighbour there is news for. Decides nothing.
  template <class Send>
  void send(Send&& send) {
    link_.send(std::forward<Send>(send));
  }

  /// Whether decide() or send() may have something to do.
  bool has_news() const;
  /// Whether take() has something to give.
  bool decided() const { return !decisions_.empty(); }
  Decisions take() { return std::exchange(decisions_, {}); }

  /// Whether the program waits for something here, and whether a bucket waits here for the program.
  bool program_waits() const { return outstanding_.program_waits() || !barrier_.empty() || !joining_.empty(); }
  bool waits_for_program() const { return outstanding_.incomplete(); }
  /// Whether a rank waits for something new that is complete, but held back until this rank's program ends its run.
  bool holds_up_others() const { return root_ && root_->holds_up_others(); }
  std::size_t length_of_run() const { return root_ ? root_->length_of_run() : 0; }

  const GroupInfo& group() const { return membership_.group(); }
  bool all_left() const { return membership_.all_left(); }
  bool broken() const { return broken_.has_value(); }
  /// Whether this rank's program is in join().
  bool joining() const { return !joining_.empty(); }
  bool any_joined() const { return !membership_.joined().empty(); }
  bool joined(int rank) const { return membership_.joined(rank); }
  /// This rank does not join while it is to wait.
  void hold_join(bool hold) { hold_join_ = hold; }
  /// What waits here for the other ranks.
  std::vector<SubmissionPtr> waiting() const { return outstanding_.all(); }
  /// Gives up on a monitored barrier because the root does not answer.
  void give_up(const SubmissionPtr& submission, const Failure& failure);
  std::uint64_t agreements() const { return agreements_; }
  std::uint64_t full_announcements() const { return full_announcements_; }

 private:
  // From this rank (child 0) or a child, to the table, or up.
  void up(int child, const Announcement& message) { table_.announce(child, message, plan_); }
  void up(int child, const Ready& message) { table_.ready(child, message, plan_); }
  void up(int, const SplitBucket& message) { root_ ? root_->split(message) : link_.to_parent(message); }
  void up(int child, const Retract& message);
  void up(int, const Left& message) { root_ ? down(message) : link_.to_parent(message); }
  void up(int, const GroupFailed& message) { root_ ? down(message) : link_.to_parent(message); }
  void up(int child, const DeviceFault& message);
  void up(int, const Waiting& message) { root_ ? root_->waiting(message) : link_.to_parent(message); }
  void up(int child, const Joined& message);
  void up(int child, const BarrierArrived& message);
  void up(int child, const BarrierTimeout& message);

  // Decisions: of the root, or from the parent; handed to the children, then applied.
  void down(const DownMessage& message);
  void apply(const Define& message);
  void apply(const Replan& message);
  void apply(const Run& message);
  void apply(const Reject& message);
  void apply(const Retracted& message);
  void apply(const Left& message);
  void apply(const GroupFailed& message);
  void apply(const DeviceFault& message);
  void apply(const Joined& message);
  void apply(const BarrierDone& message);

  void announce(const SubmissionPtr& submission);
  Ready ready(BucketId bucket) const;
  void join_when_ready();
  void pass_on();
  void run(BucketId bucket);
  void answer(const ReadyTable::Answers& answers);
  void withdrawn(const std::vector<SubmissionPtr>& submissions);
  void after_replan(const std::vector<BucketId>& retired, BucketId first_new);
  void fail(const SubmissionPtr& submission);
  std::vector<SubmissionPtr> take_everything();
  /// Whether this rank has joined.
  bool joined() const { return membership_.joined(position_.rank); }
  /// What was in flight has failed on every rank, and nothing starts any more.
  bool over() const { return broken_ || membership_.any_left(); }

  TreePosition position_;
  Membership membership_;
  PlanCache plan_;
  ReadyTable table_;
  std::optional<Root> root_;  // of the root's position
  Outstanding outstanding_;
  MonitoredBarrier barrier_;
  std::vector<SubmissionPtr> joining_;  // calls of join, until all have joined
  bool join_announced_ = false;
  bool hold_join_ = false;
  std::optional<Failure> broken_;
  std::uint64_t faults_ = 0;
  TreeLink link_;
  Decisions decisions_;
  std::uint64_t agreements_ = 0;
  std::uint64_t full_announcements_ = 0;
};

}  // namespace kolo
