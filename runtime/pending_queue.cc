#include "runtime/pending_queue.h"

#include <algorithm>
#include <limits>

#include "runtime/mismatch.h"

namespace kolo {

namespace {

/// What names of an operation that moves no data begin with; changes of groups share their numbers.
std::string_view prefix_of(OpKind kind) {
  switch (kind) {
    case OpKind::barrier: return "kolo.barrier.";
    case OpKind::monitored_barrier: return "kolo.monitored.";
    case OpKind::join: return "kolo.join.";
    default: return "kolo.groups.";
  }
}

std::uint64_t names_of(OpKind kind) {
  return kind == OpKind::barrier ? PendingQueue::max_barriers : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

void PendingQueue::submit(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  const OpKind kind = submission->signature.kind;
  Turns* turns = nullptr;
  if (submission->name.empty() && !moves_data(kind)) {
    turns = &turns_[{submission->group->id, prefix_of(kind)}];
    submission->turn = turns->first();
    submission->name = std::string(prefix_of(kind)) + std::to_string(*submission->turn % names_of(kind));
  }
  if (closed_) {
    throw Error(ErrorCode::closed,
                describe(kind, submission->name, submission->group->name) + ": the session is closed; submit before close()");
  }
  reserve_names(submission);
  if (turns) turns->take();
  submission->occurrence = occurrence_of(*submission);
  submission->sequence = sequence_ + 1;
  append({What::submit, submission, 0});
}

/// All of a submission's names, or none.
void PendingQueue::reserve_names(const SubmissionPtr& submission) {
  if (submission->signature.kind == OpKind::send_recv) {
    between_ranks_.push_back(submission);
    return;
  }
  std::vector<std::string_view> names{submission->name};
  names.insert(names.end(), submission->member_names.begin(), submission->member_names.end());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (in_flight_.emplace(Key{submission->group->id, names[i]}, submission).second) continue;
    for (std::size_t j = 0; j < i; ++j) in_flight_.erase(Key{submission->group->id, names[j]});
    throw Error(ErrorCode::in_flight, describe(submission->signature.kind, names[i], submission->group->name) +
                                          ": the name is already in flight on this rank; wait for the first operation or use another name");
  }
}

void PendingQueue::push(What what, const SubmissionPtr& submission, double seconds) {
  const std::lock_guard lock(mutex_);
  append({what, submission, 0, seconds});
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
  std::erase_if(between_ranks_, [&](const SubmissionPtr& other) { return other.get() == &submission; });
  const auto free_name = [&](std::string_view name) {
    const auto found = in_flight_.find(Key{submission.group->id, name});
    if (found != in_flight_.end() && found->second.get() == &submission) in_flight_.erase(found);
  };
  for (const std::string& name : submission.member_names) free_name(name);
  free_name(submission.name);
  const bool withdrawn = !submission.agreed && !submission.failure;  // as if it had never been
  const OpKind kind = submission.signature.kind;
  if (!withdrawn && (!submission.turn || kind == OpKind::barrier)) count(submission.group->id, submission.name);
  if (kind == OpKind::remove_group && submission.agreed) {
    std::erase_if(finished_, [&](const auto& entry) { return entry.first.first == submission.subject->id; });
  }
  if (submission.turn && withdrawn) turns_[{submission.group->id, prefix_of(submission.signature.kind)}].given_back.insert(*submission.turn);
}

void PendingQueue::count(GroupId group, std::string_view name) {
  const auto found = finished_.find(Key{group, name});
  if (found == finished_.end()) finished_.emplace(OwnedKey{group, name}, 1);
  else ++found->second;
}

/// Behind those of the name that are in flight already, if there may be several.
std::uint64_t PendingQueue::occurrence_of(const Submission& submission) const {
  const auto found = finished_.find(Key{submission.group->id, submission.name});
  const auto before = std::count_if(between_ranks_.begin(), between_ranks_.end(), [&](const SubmissionPtr& other) {
    return other.get() != &submission && other->group->id == submission.group->id && other->name == submission.name;
  });
  return (found == finished_.end() ? 0 : found->second) + static_cast<std::uint64_t>(before);
}

void PendingQueue::pass_over(GroupId group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (!name.starts_with("kolo.")) count(group, name);  // it failed; what ran had a stand-in here, which is retired
  for (OpKind kind : {OpKind::barrier, OpKind::monitored_barrier, OpKind::make_group}) {
    if (!name.starts_with(prefix_of(kind))) continue;
    Turns& turns = turns_[{group, prefix_of(kind)}];
    const std::uint64_t turn = std::stoull(name.substr(prefix_of(kind).size()));
    const bool exact = kind != OpKind::barrier;
    turns.pass_over(exact ? turn : turns.next + (turn + max_barriers - turns.next % max_barriers) % max_barriers);
  }
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
    result = between_ranks_;
    for (const auto& [key, submission] : in_flight_) {
      if (key.second.data() == submission->name.data()) result.push_back(submission);  // once, not for each of its members
    }
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return result;
}

}  // namespace kolo
