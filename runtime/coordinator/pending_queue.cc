#include "runtime/coordinator/pending_queue.h"

#include <algorithm>
#include <limits>
#include <utility>
#include "runtime/operation/arguments.h"

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

SubmissionPtr PendingQueue::submit(Request&& request) {
  const std::lock_guard lock(mutex_);
  const OpKind kind = request.signature.kind;
  Turns* turns = nullptr;
  if (request.name.empty() && !moves_data(kind)) {
    turns = &turns_[{request.group->key(), prefix_of(kind)}];
    request.number = turns->first();
    request.name = std::string(prefix_of(kind)) + std::to_string(*request.number % names_of(kind));
  }
  if (closed_) {
    throw Error(ErrorCode::closed,
                describe(kind, request.name, request.group->name) + ": the session is closed; submit before close()");
  }
  auto submission = std::allocate_shared<Submission>(PoolAllocator<Submission>(blocks_), std::move(request));
  const NameUse& use = reserve_names(submission);
  if (turns) turns->take();
  submission->queued.occurrence = use.finished + sent_before(submission->request);
  submission->pending.number = use.number;
  submission->queued.sequence = sequence_ + 1;
  if (kind == OpKind::send_recv) between_ranks_.push_back(submission);
  append({What::submit, submission, 0});
  return submission;
}

/// All of a submission's names, or none. Returns what is known of the first.
NameUse& PendingQueue::reserve_names(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  const GroupKey group = request.group->key();
  NameUse& first = use_of(group, request.name);
  if (request.signature.kind == OpKind::send_recv) return first;
  std::size_t reserved = 0;
  const auto reserve = [&](NameUse& use) {
    if (use.in_flight) return false;
    use.in_flight = submission;
    ++reserved;
    return true;
  };
  const auto& members = request.signature.members;
  if (reserve(first) &&
      std::ranges::all_of(members, [&](const auto& member) { return reserve(use_of(group, member.name)); })) {
    submission->queued.use = &first;
    return first;
  }
  const std::string& taken = reserved == 0 ? request.name : members[reserved - 1].name;
  for (std::size_t i = 0; i < reserved; ++i)
    use_of(group, i == 0 ? request.name : members[i - 1].name).in_flight = nullptr;
  throw Error(ErrorCode::in_flight,
              describe(request.signature.kind, taken, request.group->name) +
                  ": the name is already in flight on this rank; wait for the first operation or use another name");
}

NameUse& PendingQueue::use_of(const GroupKey& group, std::string_view name) {
  if (const auto found = uses_.find(Key{group, name}); found != uses_.end()) return found->second;
  return uses_[OwnedKey{group, name}];
}

void PendingQueue::push(What what, const SubmissionPtr& submission, double seconds) {
  const std::lock_guard lock(mutex_);
  append({what, submission, 0, seconds});
}

void PendingQueue::append(Item item) {
  flushed_last_.store(item.what == What::flush, std::memory_order_relaxed);
  item.sequence = ++sequence_;
  items_.push_back(std::move(item));
  size_.store(items_.size(), std::memory_order_seq_cst);
}

void PendingQueue::drain(std::vector<Item>& items) {
  items.clear();
  const std::lock_guard lock(mutex_);
  size_.store(0, std::memory_order_seq_cst);
  items.swap(items_);
}

void PendingQueue::retire(std::span<Submission* const> submissions) {
  const std::lock_guard lock(mutex_);
  for (Submission* submission : submissions) {
    if (!submission->queued.detached) {
      retire(*submission);
      continue;
    }
    if (submission->completion.failure && !unclaimed_) unclaimed_ = submission->completion.failure;
    has_unclaimed_ = unclaimed_.has_value();
    std::erase_if(detached_, [&](const SubmissionPtr& other) { return other.get() == submission; });
  }
}

bool PendingQueue::detach(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  if (submission->queued.retired) return false;
  retire(*submission);
  submission->queued.detached = true;
  detached_.push_back(submission);
  return true;
}

std::optional<Failure> PendingQueue::claim_failure() {
  if (!has_unclaimed_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  has_unclaimed_ = false;
  return std::exchange(unclaimed_, std::nullopt);
}

void PendingQueue::retire(Submission& submission) {
  const Request& request = submission.request;
  submission.queued.retired = true;
  const GroupKey group = request.group->key();
  const OpKind kind = request.signature.kind;
  if (kind == OpKind::send_recv)
    std::erase_if(between_ranks_, [&](const SubmissionPtr& other) { return other.get() == &submission; });
  const auto free_name = [&](NameUse& use) {
    if (use.in_flight.get() == &submission) use.in_flight = nullptr;
  };
  for (const GroupMember& member : request.signature.members) free_name(use_of(group, member.name));
  NameUse* const known = std::exchange(submission.queued.use, nullptr);
  NameUse& use = known ? *known : use_of(group, request.name);
  free_name(use);
  use.number = submission.pending.number;
  const bool withdrawn = !submission.pending.agreed && !submission.completion.failure;  // as if it had never been
  if (!withdrawn && (!request.number || kind == OpKind::barrier)) ++use.finished;
  if (kind == OpKind::remove_group && submission.pending.agreed) {
    std::erase_if(uses_, [&](const auto& entry) {
      return entry.first.first == request.subject->key() && !entry.second.in_flight;
    });
  }
  const bool numbered = request.number && kind != OpKind::barrier;  // its name does not come again
  if (numbered && !use.in_flight) uses_.erase(uses_.find(Key{group, request.name}));
  if (request.number && withdrawn) turns_[{group, prefix_of(kind)}].given_back.insert(*request.number);
}

/// How many of the name are in flight already, of what may be there several times.
std::uint64_t PendingQueue::sent_before(const Request& request) const {
  if (request.signature.kind != OpKind::send_recv) return 0;
  return static_cast<std::uint64_t>(std::ranges::count_if(between_ranks_, [&](const SubmissionPtr& other) {
    return other->request.group->key() == request.group->key() && other->request.name == request.name;
  }));
}

void PendingQueue::pass_over(const GroupKey& group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (!name.starts_with("kolo.")) count(group, name);  // it failed; what ran was contributed to here, and is retired
  for (OpKind kind : {OpKind::barrier, OpKind::monitored_barrier, OpKind::make_group}) {
    if (!name.starts_with(prefix_of(kind))) continue;
    Turns& turns = turns_[{group, prefix_of(kind)}];
    const std::uint64_t turn = std::stoull(name.substr(prefix_of(kind).size()));
    const bool exact = kind != OpKind::barrier;
    turns.pass_over(exact ? turn : turns.next + (turn + max_barriers - turns.next % max_barriers) % max_barriers);
  }
}

void PendingQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

SubmissionPtr PendingQueue::close_with(const std::shared_ptr<const GroupInfo>& world) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  Request request;
  request.name = "kolo.close";
  request.signature.kind = OpKind::barrier;
  request.group = world;
  auto departure = std::make_shared<Submission>(std::move(request));
  use_of(world->key(), departure->request.name).in_flight = departure;
  departure->queued.sequence = sequence_ + 1;
  append({What::depart, departure, 0});
  return departure;
}

bool PendingQueue::busy(const GroupKey& group) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(uses_,
                             [&](const auto& entry) { return entry.first.first == group && entry.second.in_flight; });
}

std::vector<SubmissionPtr> PendingQueue::in_flight() const {
  std::vector<SubmissionPtr> result;
  {
    const std::lock_guard lock(mutex_);
    result = between_ranks_;
    result.insert(result.end(), detached_.begin(), detached_.end());
    for (const auto& [key, use] : uses_) {
      if (use.in_flight && key.second == use.in_flight->request.name)
        result.push_back(use.in_flight);  // once, not for each of its members
    }
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a->queued.sequence < b->queued.sequence; });
  return result;
}

}  // namespace kolo
