#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <kolo/group.h>

#include "runtime/control/topology.h"
#include "runtime/negotiation/messages.h"
#include "runtime/negotiation/monitored_barrier.h"
#include "runtime/negotiation/outstanding.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/plan_learner.h"
#include "runtime/negotiation/ready_table.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// What the ranks have agreed on since the last look, in agreed order where order matters.
struct Decisions {
  struct Failed {
    SubmissionPtr submission;
    Failure failure;
  };
  std::vector<AgreedBucket> run;           ///< to start, in this order
  std::vector<SubmissionPtr> to_allocate;  ///< their outputs are to be made, then they are to be submitted again
  std::vector<Failed> failed;
  std::vector<SubmissionPtr> withdrawn;        ///< taken back before anything was agreed
  std::vector<SubmissionPtr> completed;        ///< there is nothing to move: monitored barriers, joins
  std::vector<std::string> without_this_rank;  ///< what ran or failed while this rank had joined and moves no data
  struct Faulted {
    std::size_t before;  ///< its place among `run`
    Failure failure;
  };
  std::vector<Faulted> faults{};  ///< what runs on a device and was agreed on before fails
  std::optional<Failure> broken;  ///< the group is of no more use: fail what is running too
};

/// Which way a message travels along an edge of the tree.
enum class Direction : std::uint8_t { to_parent, to_child };

/// One rank's part in agreeing, for one group, on what runs in which order. Pure state: messages in, messages and
/// decisions out.
///
/// Announcements travel up a tree (see TreePosition), merged at each position until its whole subtree has made them.
/// The root turns what is complete into decisions. Decisions travel down, and every rank applies the same ones in the
/// same order; a position hands them on before it sends anything that depends on them. So an operation costs one
/// message up and one down each edge, whatever the number of ranks, and nobody waits for what is not ready.
class Negotiator {
 public:
  Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes, int gpu = 0);

  // The local program, in its order.
  void submit(const SubmissionPtr& submission);
  /// Votes again, after the output of an agreed operation was made (or, if `failure` is set, was not).
  void submit_again(const SubmissionPtr& submission);
  void flush(const SubmissionPtr& submission, std::uint64_t sequence);
  /// The program has waited for something, in this group or another: a run of submissions ends.
  void end_run();
  /// The program adds nothing to what is here before something else has run.
  void stand_still();
  /// The program's patience with a monitored barrier has ended.
  void overdue(const SubmissionPtr& submission, double seconds);
  void withdraw(const SubmissionPtr& submission);
  void depart(bool abandoned);
  void break_down(const Failure& failure);
  /// Something of this rank's device failed, in a way that the group survives.
  void report_fault(const Failure& failure);

  // The neighbours: one message each, as made by outgoing() there. Throw Error{backend} on malformed ones.
  void receive_from_parent(Reader& reader);
  void receive_from_child(int neighbour, Reader& reader);

  /// Calls send(rank, direction, records) for each neighbour there is news for.
  template <class Send>
  void outgoing(Send&& send) {
    decide();
    if (!to_parent_.empty()) send(position_.parent, Direction::to_parent, to_parent_.bytes());
    to_parent_.clear();
    for (std::size_t child = 0; child < to_child_.size(); ++child) {
      if (to_child_[child].empty()) continue;
      send(position_.children[child], Direction::to_child, to_child_[child].bytes());
      to_child_[child].clear();
    }
  }

  /// Whether outgoing() may have something to send, or decide.
  bool has_news() const;

  /// Whether take() has something to give.
  bool decided() const {
    return !decisions_.run.empty() || !decisions_.to_allocate.empty() || !decisions_.failed.empty() ||
           !decisions_.withdrawn.empty() || !decisions_.completed.empty() || !decisions_.faults.empty() ||
           decisions_.broken;
  }

  /// Whether the program waits for something here, and whether a bucket waits here for the program.
  bool program_waits() const { return !waited_for_.empty() || !monitored_barrier_.empty() || !joining_.empty(); }
  bool waits_for_program() const { return local_.incomplete(); }

  /// Whether a rank waits for something new that is complete, but held back until this rank's program ends its run.
  bool holds_up_others() const;
  std::size_t length_of_run() const { return learner_.length_of_run(); }
  Decisions take() { return std::exchange(decisions_, {}); }

  const GroupInfo& group() const { return *group_; }
  /// Whether every rank of the group has left.
  bool all_departed() const { return departed_.size() == static_cast<int>(group_->ranks.size()); }
  bool broken() const { return broken_.has_value(); }
  /// Whether this rank's program is in join().
  bool joining() const { return !joining_.empty(); }
  /// Whether a rank has joined, this one by default.
  bool joined() const { return joined_.contains(position_.rank); }
  bool anybody_joined() const { return !joined_.empty(); }
  bool joined(int rank) const { return joined_.contains(rank); }
  /// This rank does not join while it is told to wait.
  void hold_join(bool hold) { hold_join_ = hold; }
  /// What waits here for the other ranks.
  std::vector<SubmissionPtr> waiting() const { return local_.all(); }
  /// Gives up on a monitored barrier because nobody answers.
  void give_up(const SubmissionPtr& submission, const Failure& failure);
  std::uint64_t agreements() const { return agreements_; }
  std::uint64_t full_announcements() const { return full_announcements_; }

 private:
  // From this rank or a child (0 is this rank) to the table, or up.
  void up(int child, const Announcement& record);
  void up(int child, const Ready& record);
  void up(int child, const SplitBucket& record);
  void up(int child, const Retract& record);
  void up(int child, const Left& record);
  void up(int child, const GroupFailed& record);
  void up(int child, const DeviceFault& record);
  void up(int child, const Waiting& record);
  void up(int child, const Joined& record);
  void up(int child, const BarrierArrived& record);
  void up(int child, const BarrierTimeout& record);

  bool handed_up(const UpRecord& record);

  void announce(const SubmissionPtr& submission);
  Ready ready(BucketId bucket) const;
  void join_when_ready();
  void pass_on();
  /// What was in flight has failed on every rank, and nothing starts any more.
  bool over() const { return broken_ || !departed_.empty(); }

  // Decisions: of the root, or from the parent; handed to the children, then applied.
  void decide();
  void decide(const std::vector<Ready>& ready);
  void decide(const Announcement& announcement);
  void decide_held();
  std::optional<Failure> unfit(TensorNumber number, const std::vector<SizesOfRanks>& told) const;
  void down(const DownRecord& record);
  void apply(const Define& record);
  void apply(const Replan& record);
  void apply(const Run& record);
  void apply(const Reject& record);
  void apply(const Retracted& record);
  void apply(const Left& record);
  void apply(const GroupFailed& record);
  void apply(const DeviceFault& record);
  void apply(const Joined& record);
  void apply(const BarrierDone& record);

  void run(BucketId bucket);
  void answer(const ReadyTable::Answers& answers);
  std::vector<int> absent() const;
  std::vector<std::vector<std::int64_t>> sizes_by_rank(TensorNumber number,
                                                       const std::vector<SizesOfRanks>& told) const;
  void after_regroup(const std::vector<BucketId>& retired, BucketId first_new);
  void answer(int child, const Retract& what);
  std::vector<SubmissionPtr> take_everything();
  void withdrawn(const Retract& what);
  Failure departure_failure(const Submission& submission) const;

  std::shared_ptr<const GroupInfo> group_;
  int gpu_;  // this rank's, for the memory of stand-ins
  TreePosition position_;
  PlanCache plan_;
  PlanLearner learner_;
  ReadyTable table_;
  Outstanding local_;
  std::vector<SubmissionPtr> waited_for_;   // by the program, not agreed yet
  std::vector<SubmissionPtr> withdrawing_;  // announced; the tree is asked to take them back
  std::vector<SubmissionPtr> joining_;      // calls of join, until all have joined
  bool join_announced_ = false;
  bool hold_join_ = false;
  RankSet joined_;
  int last_to_join_ = -1;
  MonitoredBarrier monitored_barrier_;
  std::uint64_t runs_looked_at_ = 0;          // of the learner's, for held_
  std::map<std::string, Announcement> held_;  // at the root: complete, of its program's open run
  std::set<std::string> wanted_;              // at the root: names without a number that some rank waits for
  RankSet departed_;
  int first_departed_ = -1;
  RankSet abandoned_;
  std::optional<Failure> broken_;
  std::uint64_t faults_ = 0;
  Writer to_parent_;
  std::vector<Writer> to_child_;
  Decisions decisions_;
  std::uint64_t agreements_ = 0;
  std::uint64_t full_announcements_ = 0;
};

}  // namespace kolo
