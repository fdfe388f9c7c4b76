#include "runtime/coordinator/cycle.h"

#include <algorithm>
#include <utility>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {
namespace {

/// Hands each element to `handle`, once; if that throws, those behind it remain.
template <class T, class Handle>
void take_each(std::vector<T>& all, Handle&& handle) {
  if (all.empty()) return;
  std::size_t next = 0;
  try {
    while (next < all.size()) handle(std::move(all[next++]));
  } catch (...) {
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(next));
    throw;
  }
  all.clear();
}

}  // namespace

Cycle::Cycle(PendingQueue& queue, ControlChannel& control, std::shared_ptr<const GroupInfo> world, BackendList backends,
             const Config& config, int gpu, std::function<void(const std::string&)> on_complete)
    : queue_(queue),
      control_(control),
      groups_(std::move(world), control, config, std::move(backends)),
      gpu_(gpu),
      completions_(queue, std::move(on_complete)),
      pairs_(groups_, completions_, control.rank()),
      changes_(groups_, control.rank()),
      deadlines_(queue, groups_),
      losses_(control, groups_),
      patience_(groups_) {}

bool Cycle::run(Time now) {
  return guard([&] {
    again_ = progressed_ = false;
    bool moved = has_announced_ = announce();
    moved |= agree();
    decide(now);
    moved |= send();
    const bool executed = execute(now);
    progressed_ = has_announced_ || executed;
    groups_.rest();
    return moved || executed || again_;
  });
}

bool Cycle::announce_and_send(Time now) {
  guard([&] {
    announce();
    const bool news = std::any_of(groups_.at_work().begin(), groups_.at_work().end(),
                                  [](const auto& entry) { return entry.second->negotiator.has_news(); });
    if (!news && flushed_) return false;
    decide(now);
    return send();
  });
  return !flushed_ || std::any_of(groups_.at_work().begin(), groups_.at_work().end(), [](const auto& entry) {
    const GroupState& group = *entry.second;
    return group.negotiator.decided() || group.negotiator.holds_up_others() || group.failure_reported;
  });
}

// ---- announce: from the program to the negotiators, in the program's order ------------------------------------------

bool Cycle::announce() {
  if (announced_ == drained_.size()) {
    if (queue_.empty()) return false;
    announced_ = 0;
    queue_.drain(drained_);
  }
  while (announced_ < drained_.size()) {  // if one fails, the others are for the next cycle
    const PendingQueue::Item& item = drained_[announced_++];
    if (given_up_ && item.submission) completions_.complete(item.submission, &*given_up_);
    if (!given_up_) announce(item);
  }
  drained_.clear();
  announced_ = 0;
  return true;
}

void Cycle::announce(const PendingQueue::Item& item) {
  const auto& [what, submission, sequence] = item;
  if (what == PendingQueue::What::depart || what == PendingQueue::What::abandon) {
    const bool abandoned = what == PendingQueue::What::abandon;
    departure_ = submission;
    pairs_.leave(abandoned);
    for (auto& [key, group] : groups_.all()) group->negotiator.leave(abandoned);
    return;
  }
  GroupState* group = nullptr;
  try {
    group = group_of(submission);
    if (!group) return;
    current_ = group;
    if (what == PendingQueue::What::submit) submit(*group, submission);
  } catch (...) {  // it fails with the group, or with all
    (group ? *group : groups_.world()).executor.start({.members = {submission}});
    throw;
  }
  switch (what) {
    case PendingQueue::What::flush:
      for (auto& [key, other] : groups_.at_work()) other->negotiator.fence();
      group->negotiator.look(submission, sequence);
      break;
    case PendingQueue::What::withdraw: pairs_.withdraw(*group, submission); break;
    default: break;
  }
  current_ = nullptr;
}

/// The group that a submission is for; completes it with an error if this rank has no such group.
GroupState* Cycle::group_of(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  const bool is_pair = request.group->is_pair();
  const auto& asked = is_pair ? request.parent : request.group;
  GroupState* group = groups_.find(asked->key());
  const bool known = group && group->info == asked;
  if (known && is_pair) group = pairs_.state(request.group->id);
  if (known && group) return group;
  const Failure failure =
      known ? *groups_.world().negotiator.failure()
            : Failure{ErrorCode::closed,
                      describe(request) + ": the group was removed, or belongs to another session; make it again"};
  completions_.complete(submission, &failure);
  return nullptr;
}

void Cycle::submit(GroupState& group, const SubmissionPtr& submission) {
  ++submissions_;
  const Request& request = submission->request;
  std::optional<Failure>& objection = submission->pending.objection;
  if (!objection) objection = group.executor.prepare(*submission);
  if (request.signature.kind == OpKind::remove_group && !objection && !queue_.close(request.subject->key())) {
    objection = Failure{ErrorCode::invalid_argument, "the group has operations in flight; wait for them first"};
  }
  const auto before = group.negotiator.full_announcements();
  group.is_pair() ? pairs_.submit(group, submission) : group.negotiator.submit(submission);
  counters_.full_announcements += group.negotiator.full_announcements() - before;
  deadlines_.add(*submission);
}

// ---- agree, decide, send: between the negotiators of this rank and its neighbours -----------------------------------

bool Cycle::agree() {
  if (given_up_) return false;
  bool moved = false;
  for (ControlChannel::Message message; control_.receive(message); moved = true) {
    counters_.bytes_received += message.bytes.size();
    on_message(std::move(message));
  }
  return moved;
}

void Cycle::on_message(ControlChannel::Message message) {
  Reader reader(message.bytes, control_.topology().size());
  const auto kind = reader.get<GroupKind>(2);
  const auto id = reader.get<GroupId>();
  GroupState* group = kind == GroupKind::pair ? pairs_.state(id) : groups_.find({kind, id});
  if (!group) return;  // removed, or the world has failed
  current_ = group;
  if (reader.get<Direction>(2) == Direction::to_parent) {
    group->negotiator.receive_from_child(message.from, reader);
  } else {
    group->negotiator.receive_from_parent(reader);
  }
  current_ = nullptr;
}

void Cycle::decide(Time now) {
  if (given_up_) return;
  time_has_come_ = patience_.look(submissions_, now);
  if (now >= deadlines_.next()) deadlines_.look(now);
  losses_.look(now, departure_ != nullptr);
  for (auto& [key, group] : groups_.at_work()) {
    current_ = group;
    Negotiator& negotiator = group->negotiator;
    if (negotiator.joining()) negotiator.hold_join(pairs_.wait_for(*group->info));
    negotiator.decide();
  }
  current_ = nullptr;
}

bool Cycle::send() {
  if (given_up_) return false;
  bool moved = false;
  for (auto& [key, group] : groups_.at_work()) {
    group->negotiator.send([&, key = key](int rank, Direction direction, std::span<const std::byte> bytes) {
      outgoing_.clear();
      outgoing_.put(key.kind);
      outgoing_.put(key.id);
      outgoing_.put(direction);
      outgoing_.append(bytes);
      control_.send(rank, outgoing_.bytes());
      counters_.bytes_sent += outgoing_.bytes().size();
      ++counters_.messages_sent;
      moved = true;
    });
  }
  flushed_ = control_.flush();
  return moved;
}

// ---- execute: what has been agreed ----------------------------------------------------------------------------------

bool Cycle::execute(Time now) {
  bool moved = false;
  for (auto& [key, group] : groups_.at_work()) moved |= execute(*group, now);
  current_ = nullptr;
  if (trailing_.due(now)) groups_.world().executor.progress(queue_.any_in_flight());
  const auto fail = [&](const SubmissionPtr& late, const Failure& failure) { completions_.complete(late, &failure); };
  if (changes_.remove_now(fail)) trailing_.begin(now);  // what a group leaves with its backends ends later
  return leave_when_ready() || moved;
}

bool Cycle::execute(GroupState& group, Time now) {
  current_ = &group;
  const bool decided = group.negotiator.decided() || !group.decisions.empty();
  const bool joined_before = std::exchange(group.was_joined, group.negotiator.any_joined());
  if (joined_before || group.was_joined) again_ |= pairs_.withdraw_refused(group);
  if (decided) apply_decisions(group);
  stepping_ = true;
  const bool advanced = group.executor.step(completions_.finished());
  stepping_ = false;
  if (group.executor.take_trailing()) trailing_.begin(now);
  if (const auto fault = group.executor.take_fault()) {
    group.negotiator.report_fault(*fault);
    again_ = true;
  }
  if (decided || advanced) group.count(counters_);
  completions_.publish();
  return decided || advanced;
}

/// What an error leaves undone is done by the next cycle.
void Cycle::apply_decisions(GroupState& group) {
  if (group.decisions.empty()) group.negotiator.take(group.decisions);
  Decisions& decisions = group.decisions;
  // before join() returns
  take_each(decisions.without_this_rank, [&](std::string&& name) { queue_.pass_over(group.info->key(), name); });
  take_each(decisions.forgotten, [&](std::string&& name) { queue_.forget(group.info->key(), name); });
  take_each(decisions.failed, [&](Decisions::Failed&& failed) { finish(group, failed.submission, &failed.failure); });
  take_each(decisions.withdrawn, [&](SubmissionPtr&& submission) {
    const auto& refusal = submission->pending.refusal;
    finish(group, submission, refusal ? &*refusal : nullptr);
  });
  take_each(decisions.completed, [&](SubmissionPtr&& submission) { completions_.complete(submission); });
  take_each(decisions.to_allocate, [&](SubmissionPtr&& submission) { allocate(group, submission); });
  take_each(decisions.to_contribute, [&](Unsubmitted&& operation) {
    const SubmissionPtr part = neutral_contribution(operation, group.info, gpu_);
    if (!part->pending.objection) part->pending.objection = group.executor.prepare(*part);
    vote_again(group, part);
  });
  take_each(decisions.run, [&](std::variant<AgreedBucket, Failure>&& next) {
    if (auto* const fault = std::get_if<Failure>(&next)) {
      group.executor.fail_devices(*fault, completions_.finished());
    } else {
      start(group, std::move(std::get<AgreedBucket>(next)));
    }
  });
  if (const auto broken = std::exchange(decisions.broken, std::nullopt)) {
    group.executor.abandon(*broken, completions_.finished());
    completions_.publish();
    if (group.negotiator.retired()) complete_all_of(group, *broken);
    if (!group.info->is_world()) return;
    pairs_.end_with_world();
    again_ = true;
  }
}

/// An error may have made the group lose some of what is in flight.
void Cycle::complete_all_of(GroupState& group, const Failure& failure) {
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    if (submission->request.group->key() == group.info->key() && submission != departure_)
      finish(group, submission, &failure);
  }
}

/// The ranks vote once more when they have an output to write to.
void Cycle::allocate(GroupState& group, const SubmissionPtr& submission) {
  if (submission->request.allocate) submission->pending.objection = allocate_outputs(*submission, control_.rank());
  vote_again(group, submission);
}

void Cycle::start(GroupState& group, AgreedBucket&& bucket) {
  counters_.tensors += bucket.members.size();
  const SubmissionPtr paired = group.is_pair() ? bucket.members.front() : nullptr;
  const Request& first = bucket.members.front()->request;
  const OpKind kind = first.signature.kind;
  if (kind == OpKind::remove_group) changes_.remove(first.subject->id);
  if (moves_data(kind) || kind == OpKind::barrier) {
    group.executor.start(std::move(bucket));
  } else if (kind == OpKind::make_group && changes_.advance(*bucket.members.front())) {
    vote_again(group, bucket.members.front());
  } else {
    completions_.complete(bucket.members.front());
  }
  if (paired) again_ |= pairs_.admit_next(group, paired->request.name());
}

/// An operation that never ran is done with.
void Cycle::finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure) {
  if (submission->request.signature.kind == OpKind::make_group && failure) changes_.unmake(*submission, *failure);
  completions_.complete(submission, failure);
  if (group.is_pair()) again_ |= pairs_.admit_next(group, submission->request.name());
}

/// Pairs need not agree on leaving: their ranks do so in the world.
bool Cycle::may_leave() {
  const bool alone = groups_.world().negotiator.broken();  // then nobody agrees on anything
  bool may = true;
  groups_.each([&](const GroupState& group) {
    may = may && !group.executor.busy() &&
          (alone || group.is_pair() || group.negotiator.all_left() || group.negotiator.broken());
  });
  settling_ = may && !alone && !groups_.world().executor.settled();
  return may && !settling_;
}

bool Cycle::leave_when_ready() {
  if (!departure_ || !flushed_ || !may_leave()) return false;
  trailing_ = {};
  const SubmissionPtr departure = std::exchange(departure_, nullptr);
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    if (submission == departure) continue;
    const Request& request = submission->request;
    const Failure failure{
        ErrorCode::closed,
        describe(request) + ": every rank closed the session; close sessions when all ranks are done"};
    completions_.complete(submission, &failure);
  }
  completions_.complete(departure);
  return true;
}

// ---- when something fails -------------------------------------------------------------------------------------------

/// The one place where an error of this rank's runtime ends. The ranks of the group it concerns (of all, if that is not
/// known) learn of it; until all have agreed on it, which fails what is running everywhere with the same error, nothing
/// is touched. Unless it was a backend's, it has also left the negotiation half-way. If even reporting it fails, this
/// rank leaves by itself.
void Cycle::give_up(const Failure& failure) noexcept {
  GroupState* concerned = std::exchange(current_, nullptr);
  const bool stepping = std::exchange(stepping_, false);
  try {
    completions_.publish();  // what was complete before
    if (stepping && concerned && failure.code == ErrorCode::aborted) return losses_.unexplained(*concerned, failure);
    bool reported = true;
    for (auto& [key, group] : groups_.all()) {
      if (concerned && concerned != group) continue;
      group->executor.halt();
      if (std::exchange(group->failure_reported, true) || group->negotiator.broken()) {
        reported = false;
      } else {
        stepping ? group->negotiator.fail_group(failure) : group->negotiator.retire(failure);
      }
    }
    if (reported) return;
    for (auto& [key, group] : groups_.all()) group->negotiator.leave(true);
    decide({});
    send();
  } catch (const std::exception&) {
  }
  fail_everything(failure);
}

void Cycle::fail_everything(const Failure& failure) noexcept {
  if (!given_up_) given_up_ = failure;
  trailing_ = {};
  groups_.each([&](GroupState& group) {
    group.executor.halt();
    group.executor.abandon(failure, completions_.finished());
  });
  completions_.publish();
  departure_.reset();
  for (const SubmissionPtr& submission : queue_.in_flight()) completions_.complete(submission, &failure);
}

// ---- what the driver asks -------------------------------------------------------------------------------------------

bool Cycle::needs_attention() const {
  return !queue_.empty() || control_.pending() || !flushed_ || again() || counting() || settling() ||
         std::any_of(groups_.at_work().begin(), groups_.at_work().end(), [](const auto& entry) {
           return entry.second->executor.busy() || entry.second->negotiator.joining();
         });
}

bool Cycle::operations_poll() const {
  return settling() || std::any_of(groups_.at_work().begin(), groups_.at_work().end(),
                                   [](const auto& entry) { return entry.second->executor.needs_polling(); });
}

}  // namespace kolo
