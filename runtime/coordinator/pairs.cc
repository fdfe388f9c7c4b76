#include "runtime/coordinator/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

/// What the program submits to this group; what opens a pair is of no other group.
bool is_submitted_to(const GroupInfo& group, const Submission& submission) {
  const auto& parent = submission.request.parent;
  return parent && parent->key() == group.key();
}

}  // namespace

GroupState* Pairs::state(GroupId id) {
  if (GroupState* const known = groups_.find({GroupKind::pair, id})) return known;
  if (groups_.world().negotiator.broken()) return nullptr;
  return &groups_.pair(id);
}

void Pairs::end_with_world() {
  const Failure& failure = *groups_.world().negotiator.failure();
  for (auto& [key, pair] : groups_.all()) {
    if (pair->is_pair()) pair->negotiator.end(failure);
  }
}

void Pairs::submit(GroupState& pair, const SubmissionPtr& submission, bool held) {
  if (const auto failure = pair.negotiator.take_late_failure(*submission))
    return completions_.complete(submission, &*failure);
  if (refuse(submission, !held)) return;
  if (!pair.pair_queue.admit(submission)) return;
  ask_if_left(pair);
  pair.negotiator.submit(submission);
  pair.negotiator.end_run();
}

void Pairs::look() {
  const int left = groups_.world().negotiator.left().size();
  if (std::exchange(left_, left) == left) return;
  for (auto& [key, pair] : groups_.at_work()) {
    if (pair->is_pair()) ask_if_left(*pair);
  }
}

/// A rank that has left says so in each pair that it knows, after what it had submitted there: so it is told of this
/// one. The root of a pair tells the other rank nothing otherwise, before that has submitted something.
void Pairs::ask_if_left(GroupState& pair) {
  const GroupInfo& info = *pair.info;
  const int other = info.ranks[static_cast<std::size_t>(1 - info.rank)];
  if (pair.negotiator.position().root() && groups_.world().negotiator.left().contains(other)) pair.told.reset();
}

bool Pairs::refuse(const SubmissionPtr& submission, bool is_new) {
  submission->pending.refusal = refusal_of(submission->request, is_new);
  const auto& refusal = submission->pending.refusal;
  if (refusal) completions_.complete(submission, &*refusal);
  return static_cast<bool>(refusal);
}

void Pairs::withdraw(GroupState& pair, const SubmissionPtr& submission) {
  if (pair.pair_queue.remove(submission)) {
    completions_.complete(submission);
  } else {
    pair.negotiator.withdraw(submission);
  }
}

bool Pairs::admit_next(GroupState& pair, const std::string& name) {
  while (const SubmissionPtr next = pair.pair_queue.next(name)) {
    if (refuse(next, false)) continue;
    pair.negotiator.submit(next);
    pair.negotiator.end_run();
    if (const auto flushed_at = std::exchange(next->pending.flushed_at, 0)) pair.negotiator.flush(next, flushed_at);
    return true;
  }
  return false;
}

/// Why send() or recv() cannot wait for its other rank: that has joined, or this one had when it was submitted; or the
/// world has failed.
std::optional<Failure> Pairs::refusal_of(const Request& request, bool is_new) {
  GroupState* parent = groups_.find(request.parent->key());
  if (!parent) return std::nullopt;
  if (const auto& failure = groups_.world().negotiator.failure()) return failure;
  if (const auto& failure = parent->negotiator.failure(); failure && !request.stands_for) return failure;
  for (int rank : request.group->ranks) {
    const bool joined = rank == rank_ ? is_new && parent->negotiator.joining() : parent->negotiator.joined(rank);
    if (!joined) continue;
    return Failure{ErrorCode::invalid_argument,
                   fmt::format("{}: rank {} has joined and takes part no more until all have; send before that",
                               describe(request), rank)};
  }
  return std::nullopt;
}

bool Pairs::withdraw_refused(const GroupState& parent) {
  bool any = false;
  for (auto& [key, pair] : groups_.at_work()) {
    if (!pair->is_pair()) continue;
    for (const SubmissionPtr& submission : pair->negotiator.waiting()) {
      Pending& pending = submission->pending;
      if (!is_submitted_to(*parent.info, *submission) || pending.refusal) continue;
      pending.refusal = refusal_of(submission->request, false);
      if (!pending.refusal) continue;
      pair->negotiator.withdraw(submission);
      any = true;
    }
  }
  return any;
}

bool Pairs::wait_for(const GroupInfo& parent) const {
  return groups_.any_at_work([&](const GroupState& pair) {
    if (!pair.is_pair()) return false;
    auto waiting = pair.negotiator.waiting();
    pair.pair_queue.add_to(waiting);
    for (const auto& item : pair.held) {
      if (item.what == PendingQueue::What::submit) waiting.push_back(item.submission);
    }
    return std::any_of(waiting.begin(), waiting.end(),
                       [&](const SubmissionPtr& submission) { return is_submitted_to(parent, *submission); });
  });
}

}  // namespace kolo
