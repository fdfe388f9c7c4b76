#include "runtime/coordinator/pending_queue.h"

#include <algorithm>
#include <limits>
#include <utility>
#include "runtime/operation/arguments.h"

namespace kolo {

namespace {

/// What names of an operation that moves no data begin with.
std::string_view prefix_of(OpKind kind) {
  switch (kind) {
    case OpKind::barrier: return "kolo.barrier.";
    case OpKind::join: return "kolo.join.";
    default: return "kolo.groups.";
  }
}

/// The same of all that the program has given no name.
std::string_view prefix_of(const Request& request) {
  return request.keeps_its_place() ? "#" : prefix_of(request.signature.kind);
}

/// Whether its number comes again: that of a barrier, after max_barriers.
bool comes_again(const Request& request) {
  return request.signature.kind == OpKind::barrier && !request.keeps_its_place();
}

/// The group that the program has named, which waits for what it submitted, and for nothing that stands for that.
const GroupInfo& program_group(const Request& request) {
  return request.parent && !request.stands_for ? *request.parent : *request.group;
}

/// Whether it says what an entry that is not there would say.
bool is_blank(const NameUse& use) {
  return !use.in_flight && use.sent == 0 && use.finished == 0 && !use.number;
}

}  // namespace

std::uint32_t PendingQueue::declare(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto found = indices_.find(name); found != indices_.end()) return found->second;
  const auto index = static_cast<std::uint32_t>(declared_.size());
  declared_.push_back(&indices_.emplace(name, index).first->first);
  return index;
}

SubmissionPtr PendingQueue::submit(Request&& request) {
  const std::lock_guard lock(mutex_);
  const OpKind kind = request.signature.kind;
  if (request.declared && *request.declared >= declared_.size())
    throw Error(ErrorCode::invalid_argument, "a TensorId was used that the session's declare() did not return");
  if (request.declared) request.declared_name = declared_[*request.declared];
  if (request.in_order()) return submit_in_order(std::move(request));
  Names& names = names_[request.group->key()];
  Turns* turns = nullptr;
  if (request.name().empty() && (!moves_data(kind) || request.keeps_its_place())) {
    turns = &names.turns[prefix_of(request)];
    request.number = turns->first();
    request.text = std::string(prefix_of(request)) +
                   std::to_string(comes_again(request) ? *request.number % max_barriers : *request.number);
    auto& members = request.signature.members;
    for (std::size_t i = 0; i < members.size(); ++i) members[i].name = request.text + "." + std::to_string(i);
  }
  if (closed_) {
    throw Error(ErrorCode::closed,
                describe(kind, request.name(), request.group->name) + ": the session is closed; submit before close()");
  }
  if (kind != OpKind::remove_group && !closed_groups_.empty() && closed_groups_.contains(program_group(request).key()))
    throw Error(ErrorCode::closed, describe(request) + ": the group is being removed; submit before remove_group()");
  auto submission = std::allocate_shared<Submission>(PoolAllocator<Submission>(blocks_), std::move(request));
  NameUse& use = reserve_names(names, submission);
  if (turns) turns->take();
  submission->queued.occurrence = use.finished + use.sent;
  submission->pending.number = use.number;
  submission->queued.sequence = sequence_ + 1;
  if (kind == OpKind::send_recv) ++use.sent;
  add(submission);
  append({What::submit, submission, 0});
  return submission;
}

/// Its name is its number.
SubmissionPtr PendingQueue::submit_in_order(Request&& request) {
  std::uint64_t& calls = names_[request.group->key()].calls;
  const std::uint64_t number = calls;
  request.number = number;
  request.text = "#" + std::to_string(number);
  if (closed_ || (!closed_groups_.empty() && closed_groups_.contains(request.group->key())))
    throw Error(ErrorCode::closed, describe(request) +
                                       ": the session is closed, or the group is being removed; submit "
                                       "before that");
  auto submission = std::allocate_shared<Submission>(PoolAllocator<Submission>(blocks_), std::move(request));
  ++calls;
  submission->queued.occurrence = number;
  submission->queued.sequence = sequence_ + 1;
  add(submission);
  append({What::submit, submission, 0});
  return submission;
}

/// All of a submission's names, or none. Returns what is known of the first.
NameUse& PendingQueue::reserve_names(Names& names, const SubmissionPtr& submission) {
  const Request& request = submission->request;
  NameUse& first = names.use_of(request);
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
      std::ranges::all_of(members, [&](const auto& member) { return reserve(names.use_of(member.name)); })) {
    submission->queued.use = &first;
    return first;
  }
  const std::string& taken = reserved == 0 ? request.name() : members[reserved - 1].name;
  for (std::size_t i = 0; i < reserved; ++i)
    names.use_of(i == 0 ? request.name() : members[i - 1].name).in_flight = nullptr;
  throw Error(ErrorCode::in_flight,
              describe(request.signature.kind, taken, request.group->name) +
                  ": the name is already in flight on this rank; wait for the first operation or use another name");
}

NameUse& PendingQueue::Names::use_of(std::string_view name) {
  if (const auto found = uses.find(name); found != uses.end()) return found->second;
  return uses[std::string(name)];
}

NameUse& PendingQueue::Names::use_of(const Request& request) {
  if (!request.declared) return use_of(request.name());
  if (*request.declared >= declared.size()) declared.resize(*request.declared + 1);
  NameUse*& use = declared[*request.declared];
  if (!use) use = &use_of(request.name());
  use->declared = request.declared;
  return *use;
}

void PendingQueue::Names::erase(decltype(uses)::iterator use) {
  if (use->second.declared) declared[*use->second.declared] = nullptr;
  uses.erase(use);
}

void PendingQueue::add(const SubmissionPtr& submission) {
  submission->queued.place = in_flight_.size();
  in_flight_.push_back(submission);
}

/// From what is in flight, if it is there.
void PendingQueue::remove(Submission& submission) {
  const auto place = std::exchange(submission.queued.place, std::nullopt);
  if (!place) return;
  in_flight_[*place].swap(in_flight_.back());
  if (in_flight_[*place].get() != &submission) in_flight_[*place]->queued.place = *place;
  in_flight_.pop_back();
}

void PendingQueue::push(What what, const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  append({what, submission, 0});
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
    remove(*submission);
    if (!submission->queued.retired) retire(*submission);
    if (submission->queued.detached) keep_failure(*submission);
  }
}

void PendingQueue::keep_failure(const Submission& submission) {
  if (submission.completion.failure && !unclaimed_) unclaimed_ = submission.completion.failure.optional();
  has_unclaimed_ = unclaimed_.has_value();
}

void PendingQueue::let_go(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  submission->queued.detached = true;
  if (submission->queued.retired) keep_failure(*submission);
}

bool PendingQueue::listen(const SubmissionPtr& submission, const Listener& listener) {
  const std::lock_guard lock(mutex_);
  auto& listeners = submission->queued.listeners;
  const bool others = !listeners.empty();  // they are to be called, and first
  if (!submission->completion.done.expect() && !others) return false;
  listeners.push_back(listener);
  return true;
}

void PendingQueue::stop_listening(const SubmissionPtr& submission, const Listener& listener) {
  const std::lock_guard lock(mutex_);
  std::erase(submission->queued.listeners, listener);
}

void PendingQueue::call_listeners(Submission& submission) {
  const std::lock_guard lock(mutex_);
  for (const Listener& listener : std::exchange(submission.queued.listeners, {})) (*listener)();
}

bool PendingQueue::detach(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  if (submission->queued.retired) return false;
  retire(*submission);
  submission->queued.detached = true;
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
  if (request.in_order()) return;
  const OpKind kind = request.signature.kind;
  Names& names = names_[request.group->key()];
  const auto free_name = [&](NameUse& use) {
    if (use.in_flight.get() == &submission) use.in_flight = nullptr;
  };
  for (const GroupMember& member : request.signature.members) {
    const auto found = names.uses.find(member.name);
    if (found == names.uses.end()) continue;
    free_name(found->second);
    if (is_blank(found->second)) names.erase(found);
  }
  NameUse* const known = std::exchange(submission.queued.use, nullptr);
  NameUse& use = known ? *known : names.use_of(request);
  free_name(use);
  if (kind == OpKind::send_recv && use.sent > 0) --use.sent;
  use.number = submission.pending.number;
  const Pending& pending = submission.pending;  // what was withdrawn, or refused, is as if it had never been
  const bool withdrawn = !pending.agreed && (!submission.completion.failure || pending.refusal);
  const bool numbered = request.number && !comes_again(request);  // its name does not come again
  if (!withdrawn && !submission.queued.uncounted && !numbered) ++use.finished;
  if (numbered && !use.in_flight) names.erase(names.uses.find(request.name()));
  if (request.number && withdrawn) names.turns[prefix_of(request)].given_back.insert(*request.number);
  if (kind != OpKind::remove_group || request.ends) return;  // who has abandoned a group has it still
  closed_groups_.erase(request.group->key());
  if (!submission.completion.failure) forget(request.group->key(), names);
}

/// The group is removed.
void PendingQueue::forget(const GroupKey& group, Names& names) {
  for (auto next = names.uses.begin(); next != names.uses.end();) {
    const auto use = next++;
    if (!use->second.in_flight) names.erase(use);
  }
  names.turns.clear();
  if (names.uses.empty()) names_.erase(group);
}

void PendingQueue::pass_over(const GroupKey& group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (!name.starts_with(prefix_of(OpKind::remove_group))) ++names_[group].use_of(name).finished;
  for (OpKind kind : {OpKind::barrier, OpKind::remove_group}) {
    if (!name.starts_with(prefix_of(kind))) continue;
    Turns& turns = names_[group].turns[prefix_of(kind)];
    const std::uint64_t turn = std::stoull(name.substr(prefix_of(kind).size()));
    const bool exact = kind != OpKind::barrier;
    turns.pass_over(exact ? turn : turns.next + (turn + max_barriers - turns.next % max_barriers) % max_barriers);
  }
}

void PendingQueue::forget(const GroupKey& group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  Names& names = names_[group];
  const auto found = names.uses.find(name);
  if (found == names.uses.end()) return;
  NameUse& use = found->second;
  std::uint64_t next = 0;
  const auto renumber = [&](Submission& submission) {
    if (submission.request.group->key() != group || submission.request.name() != name) return;
    submission.queued.uncounted = submission.pending.agreed;
    if (!submission.queued.uncounted) submission.queued.occurrence = next++;
  };
  if (use.in_flight) renumber(*use.in_flight);
  if (use.sent > 0) {
    for (const SubmissionPtr& submission : oldest_first()) renumber(*submission);
  }
  use.finished = 0;
  use.number.reset();
  if (is_blank(use)) names.erase(found);
}

void PendingQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

SubmissionPtr PendingQueue::close_with(const std::shared_ptr<const GroupInfo>& world) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  Request request;
  request.text = "kolo.close";
  request.signature.kind = OpKind::barrier;
  request.group = world;
  auto departure = std::make_shared<Submission>(std::move(request));
  names_[world->key()].use_of(departure->request).in_flight = departure;
  departure->queued.sequence = sequence_ + 1;
  add(departure);
  append({What::depart, departure, 0});
  return departure;
}

bool PendingQueue::close(const GroupKey& group) {
  const std::lock_guard lock(mutex_);
  const bool busy = std::ranges::any_of(in_flight_, [&](const SubmissionPtr& one) {
    return !one->queued.retired && program_group(one->request).key() == group &&
           one->request.signature.kind != OpKind::remove_group;
  });
  return !busy && (closed_groups_.insert(group), true);
}

bool PendingQueue::closed(const GroupKey& group) const {
  const std::lock_guard lock(mutex_);
  return closed_groups_.contains(group);
}

bool PendingQueue::any_in_flight() const {
  const std::lock_guard lock(mutex_);
  return !in_flight_.empty();
}

bool PendingQueue::has_rested_since(std::uint64_t& sequence) const {
  const std::lock_guard lock(mutex_);
  return std::exchange(sequence, sequence_) == sequence_ && in_flight_.empty();
}

std::vector<SubmissionPtr> PendingQueue::in_flight() const {
  const std::lock_guard lock(mutex_);
  return oldest_first();
}

std::vector<SubmissionPtr> PendingQueue::oldest_first() const {
  std::vector<SubmissionPtr> result = in_flight_;
  std::ranges::sort(result, {}, [](const SubmissionPtr& one) { return one->queued.sequence; });
  return result;
}

}  // namespace kolo
