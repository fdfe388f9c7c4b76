#include "runtime/coordinator/intake.h"

#include <utility>

#include "runtime/coordinator/take_each.h"
#include "runtime/operation/arguments.h"

namespace kolo {

bool Intake::announce(const std::optional<Failure>& given_up) {
  if (announced_ == drained_.size()) {
    if (queue_.empty()) return false;
    announced_ = 0;
    queue_.drain(drained_);
    negotiated_ = false;
  }
  while (announced_ < drained_.size()) {  // if one fails, the others are for the next cycle
    const PendingQueue::Item& item = drained_[announced_++];
    if (given_up && item.submission) completions_.complete(item.submission, &*given_up);
    if (!given_up) announce(item);
  }
  drained_.clear();
  announced_ = 0;
  return true;
}

void Intake::announce(const PendingQueue::Item& item) {
  const auto& [what, submission, sequence] = item;
  negotiated_ |= what != PendingQueue::What::submit || !submission->request.in_order();
  if (what == PendingQueue::What::depart || what == PendingQueue::What::abandon) return depart(item);
  if (submission->request.match) return announce_to_mail(item);
  GroupState* group = nullptr;
  try {
    group = group_of(submission);
    if (!group) return;
    current_ = group;
    const bool held = hold(*group, item);
    if (!held && what == PendingQueue::What::submit) submit(*group, submission);
    if (!held && what == PendingQueue::What::withdraw) pairs_.withdraw(*group, submission);
  } catch (...) {  // it fails with the group, or with all
    (group ? *group : groups_.world()).executor.start({.members = {submission}});
    throw;
  }
  if (what == PendingQueue::What::flush) flush(group, item);
  current_ = nullptr;
}

/// What is not negotiated.
void Intake::announce_to_mail(const PendingQueue::Item& item) {
  if (item.what == PendingQueue::What::flush) return flush(nullptr, item);
  if (item.what == PendingQueue::What::withdraw) return mail_.withdraw(item.submission);
  ++submissions_;
  mail_.submit(item.submission, changes_.has(*item.submission->request.parent));
}

/// The program waits: in every group something ends.
void Intake::flush(GroupState* group, const PendingQueue::Item& item) {
  for (auto& [key, other] : groups_.at_work()) {
    if (other->held.empty()) {
      other->negotiator.fence();
    } else if (other != group) {
      other->held.push_back({PendingQueue::What::flush, nullptr, item.sequence});
    }
  }
  if (group && group->held.empty() && !item.submission->request.in_order())
    group->negotiator.look(item.submission, item.sequence);
}

void Intake::depart(const PendingQueue::Item& item) {
  const bool abandoned = item.what == PendingQueue::What::abandon;
  departure_ = item.submission;
  groups_.leave(abandoned);
  for (auto& [key, group] : groups_.all()) {
    if (abandoned || group->held.empty()) {
      group->negotiator.leave(abandoned);
    } else {
      group->held.push_back(item);
    }
  }
}

/// The group that a submission is for; completes it with an error if this rank has no such group.
GroupState* Intake::group_of(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  const bool is_pair = request.group->is_pair();
  const bool known = !is_pair || request.stands_for || changes_.has(*request.parent);  // that was met in it before
  GroupState* group = nullptr;
  if (known) group = is_pair ? pairs_.state(request.group->id) : changes_.named(request.group);
  if (group) return group;
  const Failure failure =
      known && is_pair ? *groups_.world().negotiator.failure()
                       : Failure{ErrorCode::closed, describe(request) + ": the group was removed; make it again"};
  completions_.complete(submission, &failure);
  return nullptr;
}

/// Keeps what the program says about operations in a group that is not open yet. Returns whether it does.
bool Intake::hold(GroupState& group, const PendingQueue::Item& item) {
  if (group.takes_operations() || item.submission->request.signature.kind == OpKind::remove_group) return false;
  if (group.is_pair() && item.what == PendingQueue::What::submit && pairs_.refuse(item.submission)) return true;
  group.held.push_back(item);
  deadlines_.add(*item.submission);
  changes_.open(group);
  return true;
}

/// The group is open, or will never be: what was kept is announced.
void Intake::release(GroupState& group) {
  take_each(group.held, [&](PendingQueue::Item&& item) {
    const auto& [what, submission, sequence] = item;
    switch (what) {
      case PendingQueue::What::submit:
        submission->pending.attempts = 0;  // those were about the opening
        return submit(group, submission, true);
      case PendingQueue::What::withdraw: return pairs_.withdraw(group, submission);
      case PendingQueue::What::flush:
        group.negotiator.fence();
        if (submission && !submission->request.in_order()) group.negotiator.look(submission, sequence);
        return;
      default: return group.negotiator.leave(false);
    }
  });
}

/// Nothing is negotiated: it begins as soon as all that this rank called before has.
void Intake::begin(GroupState& group, const SubmissionPtr& submission) {
  ++submissions_;
  if (group.negotiator.over()) return group.negotiator.submit(submission);
  const Signature& signature = submission->request.signature;
  const auto problem = group.executor.prepare(*submission);
  const std::uint64_t token = group.negotiator.sequence().begin(signature);
  if (problem && group.executor.supports(signature)) throw Error(*problem);
  if (problem) return completions_.complete(submission, &*problem);  // the same on every rank
  submission->pending.agreed = true;
  ++counters_.tensors;
  begun_ = true;
  group.executor.start({.members = {submission}, .token = token});
  deadlines_.add(*submission);
}

void Intake::submit(GroupState& group, const SubmissionPtr& submission, bool held) {
  const Request& request = submission->request;
  if (request.in_order()) return begin(group, submission);
  ++submissions_;
  if (request.ends) {
    if (!group.negotiator.broken()) group.negotiator.cut_off(*request.ends);
    if (changes_.has(*request.group)) mail_.end_group(*request.group, *request.ends);  // else it was removed meanwhile
    return completions_.complete(submission);
  }
  Rare<Failure>& objection = submission->pending.objection;
  if (!objection) objection = group.executor.prepare(*submission);
  if (request.signature.kind == OpKind::remove_group && !objection && !queue_.close(request.group->key())) {
    objection = Failure{ErrorCode::invalid_argument, "the group has operations in flight; wait for them first"};
  }
  const auto before = group.negotiator.full_announcements();
  group.is_pair() ? pairs_.submit(group, submission, held) : group.negotiator.submit(submission);
  counters_.full_announcements += group.negotiator.full_announcements() - before;
  deadlines_.add(*submission);
}

}  // namespace kolo
