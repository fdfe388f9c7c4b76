#include "runtime/coordinator/cycle.h"

#include <algorithm>
#include <utility>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {

Cycle::Cycle(PendingQueue& queue, ControlChannel& control, std::shared_ptr<const GroupInfo> world, BackendList backends,
             const Config& config, int gpu, std::function<void(const std::string&)> on_complete)
    : queue_(queue),
      control_(control),
      groups_(std::move(world), control, config.fusion_bytes, std::move(backends), config.timings),
      gpu_(gpu),
      completions_(queue, std::move(on_complete)),
      pairs_(groups_, completions_, control.rank()) {}

bool Cycle::run(Time now) {
  return guard([&] {
    again_ = false;
    bool moved = announce();
    moved |= agree();
    decide(now);
    moved |= send();
    moved |= execute();
    return moved || again_;
  });
}

bool Cycle::announce_and_send(Time now) {
  guard([&] {
    announce();
    const bool news = std::any_of(groups_.begin(), groups_.end(),
                                  [](const auto& entry) { return entry.second->negotiator.has_news(); });
    if (!news && flushed_) return false;
    decide(now);
    return send();
  });
  return !flushed_ || std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    const GroupState& group = *entry.second;
    return group.negotiator.decided() || group.negotiator.holds_up_others() || group.failure_reported;
  });
}

// ---- announce: from the program to the negotiators, in the program's order ------------------------------------------

bool Cycle::announce() {
  if (queue_.empty()) return false;
  queue_.drain(drained_);
  for (const PendingQueue::Item& item : drained_) {
    if (given_up_ && item.submission) completions_.complete(item.submission, &*given_up_);
    if (!given_up_) announce(item);
  }
  drained_.clear();
  return true;
}

void Cycle::announce(const PendingQueue::Item& item) {
  const auto& [what, submission, sequence, seconds] = item;
  if (what == PendingQueue::What::depart || what == PendingQueue::What::abandon) {
    const bool abandoned = what == PendingQueue::What::abandon;
    departure_ = submission;
    pairs_.leave(abandoned);
    for (auto& [key, group] : groups_) group->negotiator.leave(abandoned);
    return;
  }
  GroupState* group = group_of(submission);
  if (!group) return;
  current_ = group;
  switch (what) {
    case PendingQueue::What::submit: submit(*group, submission); break;
    case PendingQueue::What::flush:
      for (auto& [key, other] : groups_) other->negotiator.end_run();
      group->negotiator.flush(submission, sequence);
      break;
    case PendingQueue::What::withdraw: pairs_.withdraw(*group, submission); break;
    case PendingQueue::What::overdue: group->negotiator.time_out(submission, seconds); break;
    default: break;
  }
  current_ = nullptr;
}

/// The group that a submission is for; completes it with an error if this rank has no such group.
GroupState* Cycle::group_of(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  if (request.group->is_pair()) return &pairs_.state(request.group->id);
  GroupState* group = groups_.find(request.group->key());
  if (group && group->info == request.group) return group;
  const Failure failure{ErrorCode::closed,
                        describe(request) + ": the group was removed, or belongs to another session; make it again"};
  completions_.complete(submission, &failure);
  return nullptr;
}

void Cycle::submit(GroupState& group, const SubmissionPtr& submission) {
  ++submissions_;
  const Request& request = submission->request;
  std::optional<Failure>& objection = submission->pending.objection;
  if (!objection && !group.executor.supports(request.signature)) {
    objection = Failure{ErrorCode::invalid_argument, "no backend of the session runs " + to_string(request.signature)};
  }
  if (request.signature.kind == OpKind::remove_group && queue_.busy(request.subject->key())) {
    objection = Failure{ErrorCode::invalid_argument, "the group has operations in flight; wait for them first"};
  }
  const auto before = group.negotiator.full_announcements();
  group.is_pair() ? pairs_.submit(group, submission) : group.negotiator.submit(submission);
  counters_.full_announcements += group.negotiator.full_announcements() - before;
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
  Reader reader(message.bytes);
  const auto kind = reader.get<GroupKind>(2);
  const auto id = reader.get<GroupId>();
  GroupState* group = kind == GroupKind::pair ? &pairs_.state(id) : groups_.find({kind, id});
  if (!group) return groups_.keep(id, std::move(message));
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
  settle_joins_and_runs(now);
  for (auto& [key, group] : groups_) {
    current_ = group.get();
    group->negotiator.decide();
  }
  current_ = nullptr;
}

/// A rank joins a group when none of its sends and receives there waits; runs end that others wait for; and buckets are
/// split that a program does not complete while it waits for something else: another rank may have submitted in another
/// order.
void Cycle::settle_joins_and_runs(Time now) {
  bool waits = false;
  for (auto& [key, group] : groups_) {
    Negotiator& negotiator = group->negotiator;
    waits |= negotiator.program_waits();
    if (group->grace_period.ended(negotiator.holds_up_others(), negotiator.length_of_run(), now)) negotiator.end_run();
    if (negotiator.joining()) negotiator.hold_join(pairs_.wait_for(*group->info));
  }
  const bool held_up = waits && std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
                         return entry.second->negotiator.waits_for_program();
                       });
  if (!standstill_.ended(held_up, submissions_, now)) return;
  for (auto& [key, group] : groups_) group->negotiator.flush_all();
}

bool Cycle::send() {
  if (given_up_) return false;
  bool moved = false;
  for (auto& [key, group] : groups_) {
    group->negotiator.send([&, key = key](int rank, Direction direction, std::span<const std::byte> bytes) {
      Writer message;
      message.put(key.kind);
      message.put(key.id);
      message.put(direction);
      message.append(bytes);
      control_.send(rank, message.bytes());
      counters_.bytes_sent += message.bytes().size();
      ++counters_.messages_sent;
      moved = true;
    });
  }
  flushed_ = control_.flush();
  return moved;
}

// ---- execute: what has been agreed ----------------------------------------------------------------------------------

bool Cycle::execute() {
  bool moved = false;
  for (auto& [key, group] : groups_) moved |= execute(*group);
  current_ = nullptr;
  for (GroupId id : std::exchange(removed_, {})) groups_.remove(id);
  if (departure_ && flushed_ && may_leave()) leave();
  return moved;
}

bool Cycle::execute(GroupState& group) {
  current_ = &group;
  const auto agreements = group.negotiator.agreements();
  const bool decided = group.negotiator.decided();
  const bool joined_before = std::exchange(group.was_joined, group.negotiator.any_joined());
  if (joined_before || group.was_joined) again_ |= pairs_.withdraw_refused(group);
  if (decided) apply_decisions(group, group.negotiator.take());
  counters_.agreements += agreements - std::exchange(group.agreements_counted, agreements);
  const auto before = group.executor.buckets_started();
  const bool advanced = group.executor.step(completions_.finished());
  counters_.buckets += group.executor.buckets_started() - before;
  if (const auto fault = group.executor.take_fault()) {
    group.negotiator.report_fault(*fault);
    again_ = true;
  }
  if (!completions_.finished().empty()) {
    const auto staged = group.executor.staged_bytes();
    counters_.staged_bytes += staged - std::exchange(group.staged_counted, staged);
    const auto time = group.executor.time_of_buckets();
    counters_.bucket_ns += static_cast<std::uint64_t>((time - std::exchange(group.time_counted, time)).count());
  }
  completions_.publish();
  return decided || advanced;
}

void Cycle::apply_decisions(GroupState& group, Decisions&& decisions) {
  for (const std::string& name : decisions.without_this_rank)
    queue_.pass_over(group.info->key(), name);  // before join() returns
  for (const auto& [submission, failure] : decisions.failed) finish(group, submission, &failure);
  for (const SubmissionPtr& submission : decisions.withdrawn) {
    const auto& refusal = submission->pending.refusal;
    finish(group, submission, refusal ? &*refusal : nullptr);
  }
  for (const SubmissionPtr& submission : decisions.completed) completions_.complete(submission);
  for (const SubmissionPtr& submission : decisions.to_allocate) {  // the ranks vote once more
    if (submission->request.allocate) submission->pending.objection = allocate_outputs(*submission, control_.rank());
    group.negotiator.submit_again(submission);
    again_ = true;
  }
  auto fault = decisions.faults.begin();
  const auto fail_before = [&](std::size_t place) {
    for (; fault != decisions.faults.end() && fault->before <= place; ++fault)
      group.executor.fail_devices(fault->failure, completions_.finished());
  };
  for (std::size_t place = 0; place < decisions.run.size(); ++place) {
    fail_before(place);
    start(group, std::move(decisions.run[place]));
  }
  fail_before(decisions.run.size());
  if (decisions.broken) {
    if (group.info->is_world()) control_.abandon();
    group.executor.abandon(*decisions.broken, completions_.finished());
  }
}

void Cycle::start(GroupState& group, AgreedBucket&& bucket) {
  for (const Unsubmitted& operation : bucket.unsubmitted)
    bucket.members.push_back(neutral_contribution(operation, group.info, bucket.absent, gpu_));
  counters_.tensors += bucket.members.size();
  const SubmissionPtr first = bucket.members.front();
  const OpKind kind = first->request.signature.kind;
  if (kind == OpKind::make_group || kind == OpKind::remove_group) {
    change_groups(first);
    current_ = &group;
  } else {
    group.executor.start(std::move(bucket));
  }
  if (group.is_pair()) again_ |= pairs_.admit_next(group, first->request.name);
}

/// An operation that never ran is done with.
void Cycle::finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure) {
  completions_.complete(submission, failure);
  if (group.is_pair()) again_ |= pairs_.admit_next(group, submission->request.name);
}

/// All ranks of the world have agreed to make or remove this group, and do it at the same place of the world's
/// decisions.
void Cycle::change_groups(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  if (request.signature.kind == OpKind::remove_group) {
    removed_.push_back(request.subject->id);
  } else {
    submission->completion.group = groups_.make(request.subject->ranks);
    for (auto& message : groups_.kept(submission->completion.group->id)) on_message(std::move(message));
    again_ = true;
  }
  completions_.complete(submission);
}

/// Pairs need not agree on leaving: their ranks do so in the world.
bool Cycle::may_leave() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    const GroupState& group = *entry.second;
    return !group.executor.busy() && (group.is_pair() || group.negotiator.all_left() || group.negotiator.broken());
  });
}

void Cycle::leave() {
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
}

// ---- when something fails -------------------------------------------------------------------------------------------

/// The one place where an error of this rank's runtime ends. The ranks of the group it concerns (of all, if that is not
/// known) learn of it; until all have agreed on it, which fails what is running everywhere with the same error, nothing
/// is touched. If even reporting it fails, this rank leaves by itself.
void Cycle::give_up(const Failure& failure) noexcept {
  GroupState* concerned = std::exchange(current_, nullptr);
  try {
    bool reported = true;
    for (auto& [key, group] : groups_) {
      if (concerned && concerned != group.get()) continue;
      group->executor.halt();
      if (std::exchange(group->failure_reported, true) || group->negotiator.broken()) {
        reported = false;
      } else {
        group->negotiator.fail_group(failure);
      }
    }
    if (reported) return;
    for (auto& [key, group] : groups_) group->negotiator.leave(true);
    decide({});
    send();
  } catch (const std::exception&) {
  }
  fail_everything(failure);
}

void Cycle::fail_everything(const Failure& failure) noexcept {
  if (!given_up_) given_up_ = failure;
  for (auto& [key, group] : groups_) {
    group->executor.halt();
    group->executor.abandon(failure, completions_.finished());
  }
  completions_.publish();
  departure_.reset();
  for (const SubmissionPtr& submission : queue_.in_flight()) completions_.complete(submission, &failure);
}

void Cycle::end_devices() noexcept {
  for (auto& [key, group] : groups_) group->executor.end_devices();
}

void Cycle::give_up_barrier(const SubmissionPtr& submission, const Failure& failure) {
  if (GroupState* group = groups_.find(submission->request.group->key()))
    group->negotiator.give_up(submission, failure);
}

// ---- what the driver asks -------------------------------------------------------------------------------------------

bool Cycle::busy() const {
  return !flushed_ || again_ || std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    return entry.second->executor.busy() || entry.second->negotiator.joining();
  });
}

bool Cycle::operations_poll() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second->executor.needs_polling(); });
}

bool Cycle::counting() const {
  return standstill_.counting() || std::any_of(groups_.begin(), groups_.end(),
                                               [](const auto& entry) { return entry.second->grace_period.counting(); });
}

SessionStats Cycle::stats() const {
  SessionStats stats;
  stats.agreements = counters_.agreements;
  stats.tensors = counters_.tensors;
  stats.buckets = counters_.buckets;
  stats.full_announcements = counters_.full_announcements;
  stats.control_bytes_sent = counters_.bytes_sent;
  stats.control_bytes_received = counters_.bytes_received;
  stats.control_messages_sent = counters_.messages_sent;
  stats.staged_bytes = counters_.staged_bytes;
  stats.bucket_seconds = static_cast<double>(counters_.bucket_ns) * 1e-9;
  return stats;
}

}  // namespace kolo
