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
  if (!in_flight_.emplace(Key{submission->group->id, submission->name}, submission).second) {
    throw Error(ErrorCode::in_flight,
                what() + ": the name is already in flight on this rank; wait for the first operation or use another name");
  }
  if (turns) turns->take();
  submission->sequence = sequence_ + 1;
  append({What::submit, submission, 0});
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
  in_flight_.erase(Key{submission.group->id, submission.name});
  const bool withdrawn = !submission.agreed && !submission.failure;
  if (submission.turn && withdrawn) turns_of(submission).given_back.insert(*submission.turn);
}

void PendingQueue::close(const SubmissionPtr& departure) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (!departure) return;
  in_flight_.emplace(Key{departure->group->id, departure->name}, departure);
  departure->sequence = sequence_ + 1;
  append({What::depart, departure, 0});
}

bool PendingQueue::busy(GroupId group) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(in_flight_.begin(), in_flight_.end(), [&](const auto& entry) { return entry.first.first == group; });
}

std::vector<SubmissionPtr> PendingQueue::in_flight() const {
  std::vector<SubmissionPtr> result;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, submission] : in_flight_) result.push_back(submission);
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return result;
}

}  // namespace kolo
