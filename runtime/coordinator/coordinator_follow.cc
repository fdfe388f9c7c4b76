#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/coordinator/coordinator.h"
#include "runtime/negotiation/mismatch.h"
#include "runtime/operation/block_sizes.h"

// What the holder of the coordinator's role does with what a group has decided.

namespace kolo {

void Coordinator::apply_decisions(GroupState& group, Decisions decisions) {
  const bool joined_before = std::exchange(group.was_joined, group.negotiator.anybody_joined());
  if (joined_before || group.was_joined) refuse_joined(group);
  for (const std::string& name : decisions.without_this_rank)
    queue_.pass_over(group.info->id, name);  // before join() returns
  for (const auto& [submission, failure] : decisions.failed) finish(group, submission, &failure);
  for (const SubmissionPtr& submission : decisions.withdrawn)
    finish(group, submission, submission->refusal ? &*submission->refusal : nullptr);
  for (const SubmissionPtr& submission : decisions.completed) complete(submission);
  for (const SubmissionPtr& submission : decisions.to_allocate) make_output(group, submission);
  auto fault = decisions.faults.begin();
  const auto fail_before = [&](std::size_t place) {
    for (; fault != decisions.faults.end() && fault->before <= place; ++fault)
      group.executor.fail_devices(fault->failure, finished_);
  };
  for (std::size_t place = 0; place < decisions.run.size(); ++place) {
    fail_before(place);
    AgreedBucket& bucket = decisions.run[place];
    counters_.tensors += bucket.members.size();
    const SubmissionPtr first = bucket.members.front();
    if (first->signature.kind == OpKind::make_group || first->signature.kind == OpKind::remove_group) {
      change_groups(first);
      current_ = &group;
    } else {
      group.executor.start(std::move(bucket));
    }
    if (group.is_pair()) admit_next(group, first->name);
  }
  fail_before(decisions.run.size());
  if (decisions.broken) {
    if (group.info->id == 0) control_->abandon();
    group.executor.abandon(*decisions.broken, finished_);
  }
}

/// An operation that never ran is done with.
void Coordinator::finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure) {
  const std::string name = submission->name;
  complete(submission, failure);
  if (group.is_pair()) admit_next(group, name);
}

/// The sizes are agreed: this rank's output is made, if it is to be, and the ranks vote once more.
void Coordinator::make_output(GroupState& group, const SubmissionPtr& submission) {
  if (submission->allocate) submission->failure = allocate_outputs(*submission, control_->rank());
  group.negotiator.submit_again(submission);
  again_ = true;
}

void Coordinator::admit_next(GroupState& pair, const std::string& name) {
  while (const SubmissionPtr next = pair.pair_queue.next(name)) {
    if (const auto failure = refusal_of(*next)) {
      complete(next, &*failure);
      continue;
    }
    pair.negotiator.submit(next);
    pair.negotiator.end_run();
    if (const auto flushed_at = std::exchange(next->flushed_at, 0)) pair.negotiator.flush(next, flushed_at);
    again_ = true;
    return;
  }
}

// ---- ranks that join
// -------------------------------------------------------------------------------------------------

/// Why send() or recv() cannot wait for its other rank: that has joined, or this one had when it was submitted.
std::optional<Failure> Coordinator::refusal_of(const Submission& submission, bool is_new) {
  GroupState* parent = groups_.find(submission.parent->id);
  if (!parent) return std::nullopt;
  for (int rank : submission.group->ranks) {
    const bool joined =
        rank == control_->rank() ? is_new && parent->negotiator.joining() : parent->negotiator.joined(rank);
    if (!joined) continue;
    return Failure{ErrorCode::invalid_argument,
                   fmt::format("{}: rank {} has joined and takes part no more until all have; send before that",
                               describe(submission.signature.kind, submission.name, submission.group->name), rank)};
  }
  return std::nullopt;
}

/// Somebody has joined this group: what waits for that rank in a pair is taken back.
void Coordinator::refuse_joined(GroupState& group) {
  for (auto& [id, pair] : groups_) {
    if (!pair->is_pair()) continue;
    for (const SubmissionPtr& submission : pair->negotiator.waiting()) {
      if (submission->parent->id != group.info->id || submission->refusal) continue;
      submission->refusal = refusal_of(*submission);
      if (!submission->refusal) continue;
      pair->negotiator.withdraw(submission);
      again_ = true;
    }
  }
}

/// A rank joins a group when none of its sends and receives there waits; runs end that others wait for; and buckets are
/// cut that a program does not complete while it waits for something else: another rank may have submitted in another
/// order.
void Coordinator::settle_joins_and_runs() {
  bool waits = false;
  for (auto& [id, group] : groups_) {
    Negotiator& negotiator = group->negotiator;
    waits |= negotiator.program_waits();
    if (group->patience.ended(negotiator.holds_up_others(), negotiator.length_of_run())) negotiator.end_run();
    if (!negotiator.joining()) continue;
    negotiator.hold_join(std::any_of(groups_.begin(), groups_.end(), [&, group = id](const auto& entry) {
      if (!entry.second->is_pair()) return false;
      auto waiting = entry.second->negotiator.waiting();
      entry.second->pair_queue.add_to(waiting);
      return std::any_of(waiting.begin(), waiting.end(),
                         [&](const auto& submission) { return submission->parent->id == group; });
    }));
  }
  const bool holds_up = waits && std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
                          return entry.second->negotiator.waits_for_program();
                        });
  if (!standstill_.ended(holds_up, submissions_)) return;
  for (auto& [id, group] : groups_) group->negotiator.stand_still();
}

// ---- groups and pairs
// -------------------------------------------------------------------------------------------------

GroupState& Coordinator::pair_state(GroupId id) {
  const bool known = groups_.find(id);
  GroupState& pair = groups_.pair(id);
  if (!known && departing_) pair.negotiator.depart(*departing_ == PendingQueue::What::abandon);
  return pair;
}

/// All ranks of the world have agreed to make or remove this group, and do it at the same place of the world's
/// decisions.
void Coordinator::change_groups(const SubmissionPtr& submission) {
  if (submission->signature.kind == OpKind::remove_group) {
    removed_.push_back(submission->subject->id);
  } else {
    submission->subject = groups_.make(submission->subject->ranks);
    for (auto& message : groups_.kept(submission->subject->id)) on_message(std::move(message));
    again_ = true;
  }
  complete(submission);
}

}  // namespace kolo
