#include "runtime/pending_queue.h"

#include <algorithm>

#include "runtime/mismatch.h"

namespace kolo {

void PendingQueue::submit(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  Turns* turns = nullptr;
  if (submission->name.empty() && !moves_data(submission->signature.kind)) {
    turns = &turns_of(*submission);
    submission->turn = turns->first();
    submission->name = submission->signature.kind == OpKind::barrier
                           ? "kolo.barrier." + std::to_string(*submission->turn % max_barriers)
                           : "kolo.groups." + std::to_string(*submission->turn);
  }
  const auto what = [&] { return describe(submission->signature.kind, submission->name, submission->group->name); };
  if (closed_) throw Error(ErrorCode::closed, what() + ": the session is closed; submit before close()");
  Name& name = name_of(*submission);
  if (name.in_flight) {
    throw Error(ErrorCode::in_flight,
                what() + ": the name is already in flight on this rank; wait for the first operation or use another name");
  }
  name.in_flight = submission;
  submission->occurrence = name.finished;
  if (turns) turns->take();
  submission->sequence = sequence_ + 1;
  append({What::submit, submission, 0});
}

PendingQueue::Name& PendingQueue::name_of(const Submission& submission) {
  const auto found = names_.find(KeyView(submission.group->id, submission.name));
  return found != names_.end() ? found->second : names_[Key(submission.group->id, submission.name)];
}

PendingQueue::Turns& PendingQueue::turns_of(const Submission& submission) {
  return turns_[{submission.group->id, submission.signature.kind == OpKind::barrier}];
}

void PendingQueue::push(What what, const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  append({what, submission, 0});
}

void PendingQueue::append(Item item) {
  item.sequence = ++sequence_;
  items_.push_back(std::move(item));
  size_.store(items_.size(), std::memory_order_seq_cst);
}

std::vector<PendingQueue::Item> PendingQueue::drain() {
  const std::lock_guard lock(mutex_);
  size_.store(0, std::memory_order_seq_cst);
  return std::exchange(items_, {});
}

void PendingQueue::retire(const Submission& submission) {
  const std::lock_guard lock(mutex_);
  const auto name = names_.find(KeyView(submission.group->id, submission.name));
  const bool withdrawn = !submission.agreed && !submission.failure;
  name->second.in_flight.reset();
  if (!withdrawn) ++name->second.finished;
  if (submission.turn && withdrawn) turns_of(submission).given_back.insert(*submission.turn);
  const OpKind kind = submission.signature.kind;
  if (kind == OpKind::make_group || kind == OpKind::remove_group) names_.erase(name);  // each has a name of its own
  if (kind == OpKind::remove_group && submission.agreed) {
    std::erase_if(names_, [&](const auto& entry) { return entry.first.first == submission.subject->id && !entry.second.in_flight; });
  }
}

void PendingQueue::close(const SubmissionPtr& departure) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (!departure) return;
  name_of(*departure).in_flight = departure;
  departure->sequence = sequence_ + 1;
  append({What::depart, departure, 0});
}

bool PendingQueue::busy(GroupId group) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(names_.begin(), names_.end(),
                     [&](const auto& entry) { return entry.first.first == group && entry.second.in_flight; });
}

std::vector<SubmissionPtr> PendingQueue::in_flight() const {
  std::vector<SubmissionPtr> result;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, name] : names_) {
      if (name.in_flight) result.push_back(name.in_flight);
    }
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return result;
}

}  // namespace kolo
