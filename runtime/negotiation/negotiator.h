#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <kolo/group.h>

#include "runtime/control/topology.h"
#include "runtime/negotiation/census.h"
#include "runtime/negotiation/membership.h"
#include "runtime/negotiation/messages.h"
#include "runtime/negotiation/outstanding.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/negotiation/ready_table.h"
#include "runtime/negotiation/root.h"
#include "runtime/negotiation/sequence.h"
#include "runtime/negotiation/tree_link.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// From now on members of the group also launch work of other groups on their devices.
struct DevicesAreShared {};

/// What the ranks have agreed on since the last look, in agreed order where order matters.
struct Decisions {
  struct Failed {
    SubmissionPtr submission;
    Failure failure;
  };
  /// To start, in this order; to open the group, which is submitted again after each step until it is open; a failure:
  /// what runs on a device and was agreed on before fails with it.
  std::vector<std::variant<AgreedBucket, Failure, DevicesAreShared>> run;
  std::vector<SubmissionPtr> to_allocate;  ///< their outputs are to be made, then they are to be submitted again
  std::vector<Unsubmitted> to_contribute;  ///< this rank has joined: its part is to be made, then submitted again
  std::vector<Failed> failed;
  std::vector<SubmissionPtr> withdrawn;        ///< taken back before anything was agreed
  std::vector<SubmissionPtr> completed;        ///< there is nothing to move: joins
  std::vector<std::string> without_this_rank;  ///< what ran or failed while this rank had joined
  std::vector<Gone> gone;                      ///< ranks, in whatever group
  std::vector<std::string> forgotten;          ///< names of which the ranks remember nothing from now on
  std::optional<Failure> broken;               ///< the group is of no more use: fail what is running too

  void swap(Decisions& other) noexcept {
    run.swap(other.run);
    to_allocate.swap(other.to_allocate);
    to_contribute.swap(other.to_contribute);
    failed.swap(other.failed);
    withdrawn.swap(other.withdrawn);
    completed.swap(other.completed);
    without_this_rank.swap(other.without_this_rank);
    gone.swap(other.gone);
    forgotten.swap(other.forgotten);
    if (broken || other.broken) broken.swap(other.broken);
  }
  bool empty() const {
    return run.empty() && to_allocate.empty() && to_contribute.empty() && failed.empty() && withdrawn.empty() &&
           completed.empty() && without_this_rank.empty() && gone.empty() && forgotten.empty() && !broken;
  }
};

/// One rank's part in agreeing, for one group, on what runs in which order. Pure state: messages in, messages and
/// decisions out.
///
/// Announcements travel up a tree (see TreePosition), merged at each position until its whole subtree has made them.
/// The root turns what is complete into decisions (see Root). Decisions travel down, and every rank applies the same
/// ones in the same order; a position hands them on before it sends anything that depends on them. So an operation
/// costs one message up and one down each edge, whatever the number of ranks, and nobody waits for what is not ready.
/// Where outputs are to be allocated, or ranks have joined, that is so twice: the ranks vote again once all is made.
class Negotiator {
 public:
  /// `room`: the number of tensors that the plan may hold. `tunes_fusion`: see PlanLearner; counts at the root only.
  Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes,
             std::size_t room = 8192, bool tunes_fusion = false);

  // The local program, in its order.
  void submit(const SubmissionPtr& submission);
  /// Votes again, after what an agreed operation needs was made (or, if it has an objection, was not).
  void submit_again(const SubmissionPtr& submission);
  void flush(const SubmissionPtr& submission, std::uint64_t sequence, bool standstill = false);
  /// The program waits for something in this group, or polls it.
  void look(const SubmissionPtr& submission, std::uint64_t sequence) {
    end_run();
    if (root_) root_->looked(*submission);
    flush(submission, sequence);
  }
  /// A run of submissions ends: the program waits for one of this group, or has kept others waiting for long.
  void end_run() {
    if (root_) root_->end_run();
  }
  /// The program waits for something, or polls it, in whatever group: no bucket whose layout_matters() holds what comes
  /// before and what comes after.
  void fence() {
    if (retired_) return;
    ++run_;
    if (root_) root_->fence();
    part();
  }
  /// The program is blocked: flush every incomplete bucket.
  void flush_all();
  /// The program has waited for long: other ranks may have what it waits for, in a bucket that they do not complete
  /// because they wait elsewhere, for this rank.
  void ask_for_parts() {
    for (const BucketId bucket : outstanding_.awaited(plan_)) up(0, Awaited{bucket, position_.rank});
  }
  /// Whether other ranks have waited for long for a bucket whose layout_matters(), and of which this rank's program has
  /// submitted a part. Its tensors run alone from now on, once give_parts() is called: what the program waits for, if
  /// it does, is nothing that kolo knows.
  bool keeps_parts() const {
    return !retired_ &&
           std::ranges::any_of(awaited_, [this](BucketId bucket) { return outstanding_.has_part(bucket); });
  }
  void give_parts() {
    for (const BucketId bucket : std::exchange(awaited_, {})) give_part(bucket);
  }
  /// An operation's deadline of so many seconds has passed; said for the `attempt`-th time, from 1.
  void overdue(const SubmissionPtr& submission, double seconds, int attempt);
  void withdraw(const SubmissionPtr& submission);
  /// How it fails, if it is late and the others have given it up.
  std::optional<Failure> take_late_failure(const Submission& submission) {
    return late_.take_failure(submission.request.name());
  }
  void leave(bool abandoned) {
    const Left message{position_.rank, abandoned, sequence_.begun()};
    if (abandoned || broken_) link_.to_children(message);  // it may hand nothing on from now on: both sides hear it
    up(0, message);
  }
  void fail_group(const Failure& failure) { up(0, GroupFailed{failure}); }
  /// The same where this rank's part of the negotiation was left half-way, and is of no more use: it waits until the
  /// ranks have agreed on the failure, and handles and hands on nothing else, since decisions before that build on one
  /// that was lost here. Who asks for it fails what was submitted. `removes`: this rank has asked to remove the group;
  /// so it waits for nobody, since the others may have done so, and know nothing of it any more.
  void retire(const Failure& failure, bool removes = false) {
    retired_ = failure;
    removes ? cut_off(failure) : fail_group(failure);
  }
  /// The group ends here, without a word to its other ranks, who know: what waits fails, and no decision counts.
  void end(const Failure& failure) {
    apply(GroupFailed{failure});
    cut_off_ = true;
  }
  /// The same where no decision comes from the root any more: also sends the failure to this rank's neighbours.
  void cut_off(const Failure& failure);
  /// Where operations are matched by their order: what this rank has begun.
  Sequence& sequence() { return sequence_; }
  bool in_order() const { return group().in_order(); }
  /// The same where a rank has left without having begun an operation: neither that nor a later one will be complete.
  void end_if_left(const Submission& oldest) {
    if (!in_order() || broken_ || *oldest.request.number < membership_.last_begun()) return;
    apply(GroupFailed{membership_.left_failure()});
  }
  /// Another rank has called something else, in this operation or a later one.
  void differs(std::uint64_t number) { up(0, Differs{number}); }
  /// All ranks of the group are to know that a rank is gone. Works whatever has become of the group.
  void tell(const Gone& gone) {
    if (gone_.contains(gone.rank)) return;
    gone_.add(gone.rank);
    decisions_.gone.push_back(gone);
    if (!position_.root()) link_.to_parent(gone);
    link_.to_children(gone);
  }
  /// The ranks are to know that this rank is about to launch work of another group, too, on its device.
  void share_devices() { up(0, SharesDevice{position_.rank}); }
  /// Something of this rank's device failed, in a way that the group survives.
  void report_fault(const Failure& failure) { up(0, DeviceFault{failure, faults_}); }

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
  Decisions take() {
    Decisions taken;
    take(taken);
    return taken;
  }
  /// The same, into what is empty, and whose memory serves the next decisions.
  void take(Decisions& empty) { decisions_.swap(empty); }

  /// Whether the program waits for something here, and whether a bucket waits here for the program.
  bool program_waits() const { return outstanding_.program_waits() || !joining_.empty(); }
  bool waits_for_program() const { return outstanding_.incomplete(); }
  /// Whether a rank waits for something new that is complete, but held back until this rank's program ends its run.
  bool holds_up_others() const { return root_ && root_->holds_up_others(); }
  std::size_t length_of_run() const { return root_ ? root_->length_of_run() : 0; }

  /// Whether nothing waits here and nothing is to be decided or announced.
  bool at_rest() const {
    return outstanding_.empty() && !has_news() && !decided() && !any_joined() && !holds_up_others() &&
           (!root_ || root_->all_looked_at());
  }

  const GroupInfo& group() const { return membership_.group(); }
  const TreePosition& position() const { return position_; }
  const RankSet& left() const { return membership_.left(); }
  /// Whether a rank has left when it had finished, as far as is known.
  bool has_closed(int rank) const { return left().contains(rank) && !gone_.contains(rank); }
  bool all_left() const { return membership_.all_left(); }
  /// Whether this rank need not wait for others here: all have left; or, in a group of some, one has, and nothing is
  /// decided any more (nor need all say it, since one that has removed the group since does not); or it has failed. The
  /// ranks that hear of the others by this one know that, too.
  bool may_leave() const { return group().is_world() ? broken() || all_left() : over(); }
  bool broken() const { return broken_.has_value(); }
  bool retired() const { return retired_.has_value(); }
  /// What was in flight has failed on every rank, and nothing starts any more.
  bool over() const { return broken_ || membership_.any_left(); }
  const std::optional<Failure>& failure() const { return broken_; }
  /// Whether this rank's program is in join().
  bool joining() const { return !joining_.empty(); }
  bool any_joined() const { return !membership_.joined().empty(); }
  bool joined(int rank) const { return membership_.joined(rank); }
  /// This rank does not join while it is to wait.
  void hold_join(bool hold) { hold_join_ = hold; }
  /// What waits here for the other ranks.
  std::vector<SubmissionPtr> waiting() const { return outstanding_.all(); }
  /// Whether it waits here for the other ranks.
  bool waits(const SubmissionPtr& submission) const { return outstanding_.holds(*submission, plan_); }
  /// Takes that, and what is in a join.
  std::vector<SubmissionPtr> take_everything();
  std::uint64_t agreements() const { return agreements_; }
  std::uint64_t full_announcements() const { return full_announcements_; }

 private:
  // From this rank (child 0) or a child, to the table, or up.
  void up(int child, const Announcement& message) {
    if (message.variants.empty()) throw Error(ErrorCode::backend, "malformed control message (an empty announcement)");
    report(table_.announce(child, message, plan_));
  }
  void up(int child, const Ready& message) { report(table_.ready(child, message, plan_)); }
  void up(int, const SplitBucket& message) { root_ ? root_->split(message) : link_.to_parent(message); }
  void up(int child, const Retract& message);
  void up(int child, const Left& message);
  void up(int, const GroupFailed& message) { root_ ? down(message) : link_.to_parent(message); }
  void up(int, const DeviceFault& message) {
    if (!root_) return link_.to_parent(message);
    if (message.number == faults_) down(message);
  }
  void up(int, const Differs& message) { root_ ? down(message) : link_.to_parent(message); }
  void up(int, const Described& message) {
    if (!root_) return link_.to_parent(message);
    if (broken_) return;
    if (const auto failure = disorder_.add(message, group().name)) down(GroupFailed{*failure});
  }
  void up(int, const Gone& message) { tell(message); }
  void up(int, const SharesDevice& message) {
    if (!root_) return link_.to_parent(message);
    if (!std::exchange(devices_shared_, true)) down(message);
  }
  void up(int, const Waiting& message) { root_ ? root_->waiting(message) : link_.to_parent(message); }
  void up(int, const Joined& message) { root_ ? down(message) : link_.to_parent(message); }
  void up(int, const Overdue& message) { root_ ? root_->overdue(message) : link_.to_parent(message); }
  void up(int, const Awaited& message) { root_ ? root_->awaited(message) : link_.to_parent(message); }
  void up(int, const Presence& message) { root_ ? root_->present(message) : link_.to_parent(message); }
  void up(int, const Conflict& message) { root_ ? root_->conflict(message) : link_.to_parent(message); }
  void report(const std::vector<Conflict>& conflicts) {
    for (const Conflict& conflict : conflicts) up(0, conflict);
  }

  // Decisions: of the root, or from the parent; handed to the children, then applied.
  void down(const DownMessage& message);
  void apply(const Define& message);
  void apply(const Replan& message);
  void apply(const Run& message);
  void apply(const Reject& message);
  void apply(const Retracted& message) { answer(table_.retracted(message.what), message.what); }
  void apply(const Left& message);
  void apply(const GroupFailed& message);
  void apply(const DeviceFault& message) {
    ++faults_;
    decisions_.run.emplace_back(message.failure);
  }
  void apply(const Gone&) {}  // see tell()
  void apply(const Differs& message) { up(0, sequence_.since(message.number, position_.rank)); }
  void apply(const SharesDevice&) { decisions_.run.emplace_back(DevicesAreShared{}); }
  void apply(const Joined& message);
  void apply(const Awaited& message) {
    if (!outstanding_.has_part(message.bucket)) return;
    if (!layout_matters(plan_.row(plan_.members(message.bucket)->front()).signature)) {
      up(0, *outstanding_.part_of(message.bucket, plan_));
    } else if (std::ranges::find(awaited_, message.bucket) == awaited_.end()) {
      awaited_.push_back(message.bucket);
    }
  }
  void apply(const WhoHas& message);
  void apply(const Expired& message);
  void apply(const Forget& message);

  void announce(const SubmissionPtr& submission);
  void announce_anew(const std::vector<SubmissionPtr>& submissions);
  /// Asks to split what the program's waits part.
  void part() {
    for (const SplitBucket& split : outstanding_.parted(run_, plan_)) up(0, split);
  }
  void give_part(BucketId bucket);
  Ready ready(BucketId bucket) const { return outstanding_.ready(bucket, position_.rank, plan_); }
  void join_when_ready();
  void pass_on();
  void run(BucketId bucket);
  void answer(const std::vector<int>& children, const Retract& what);
  void withdrawn(const std::vector<SubmissionPtr>& submissions) {
    decisions_.withdrawn.insert(decisions_.withdrawn.end(), submissions.begin(), submissions.end());
  }
  void after_replan(const std::vector<BucketId>& retired, BucketId first_new);
  /// It cannot run any more: the group has failed, here if not elsewhere, or a rank has left.
  void fail(const SubmissionPtr& submission) {
    const auto& failure = broken_ ? broken_ : retired_;
    decisions_.failed.push_back({submission, failure ? *failure : membership_.left_failure(submission->request)});
  }
  bool give_up(const std::string& name, const Failure& failure);
  /// Whether this rank has joined.
  bool joined() const { return membership_.joined(position_.rank); }
  /// Whether a message means anything to a rank whose part is retired, or for which the group has failed: it may have
  /// heard of that before what the others have done meanwhile.
  static bool ends_all(const auto& message) {
    return std::holds_alternative<GroupFailed>(message) || std::holds_alternative<Left>(message) ||
           std::holds_alternative<Gone>(message);
  }

  TreePosition position_;
  Membership membership_;
  PlanCache plan_;
  ReadyTable table_;
  std::unique_ptr<Root> root_;  // of the root's position
  Outstanding outstanding_;
  LateOperations late_;
  std::uint64_t run_ = 0;               // of the program: how often it has waited
  std::vector<BucketId> awaited_;       // by other ranks, for long; see keeps_parts()
  std::vector<SubmissionPtr> joining_;  // calls of join, until all have joined
  bool join_announced_ = false;
  bool hold_join_ = false;
  std::optional<Failure> broken_;
  bool cut_off_ = false;
  std::optional<Failure> retired_;
  std::uint64_t faults_ = 0;
  bool devices_shared_ = false;  // at the root
  RankSet gone_;
  Sequence sequence_;
  Disorder disorder_;  // at the root
  TreeLink link_;
  Decisions decisions_;
  std::uint64_t agreements_ = 0;
  std::uint64_t full_announcements_ = 0;
};

}  // namespace kolo
