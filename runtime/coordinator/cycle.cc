#include "runtime/coordinator/cycle.h"

#include <algorithm>
#include <utility>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/coordinator/take_each.h"
#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {
Cycle::Cycle(PendingQueue& queue, ProgramGroups& program_groups, ControlChannel& control,
             std::shared_ptr<const GroupInfo> world, BackendList backends, const Config& config, int gpu,
             std::function<void(const std::string&)> on_complete)
    : queue_(queue),
      control_(control),
      groups_(std::move(world), control, config, std::move(backends)),
      gpu_(gpu),
      completions_(queue, std::move(on_complete)),
      pairs_(groups_, completions_, control.rank()),
      deadlines_(queue, groups_),
      losses_(control, groups_),
      mail_(queue, groups_, completions_, losses_, control),
      changes_(groups_, program_groups, losses_, control.rank()),
      intake_(queue, groups_, changes_, pairs_, mail_, deadlines_, completions_, counters_, current_),
      patience_(groups_) {}

bool Cycle::run(Time now) {
  return guard([&] {
    again_ = progressed_ = heard_ = false;
    now_ = now;
    bool moved = has_announced_ = intake_.announce(given_up_);
    // What was not negotiated is mostly complete at once: whoever waits for it need not hear the others first.
    if (intake_.take_begun() && intake_.took_nothing_else() && execute(now) && !again_) return progressed_ = true;
    moved |= agree();
    heard_ = true;
    decide(now);
    moved |= send();
    const bool executed = execute(now);
    progressed_ = has_announced_ || executed;
    groups_.rest();
    return moved || executed || again_;
  });
}

bool Cycle::announce_and_send(Time now) {
  bool more = false;  // what has begun goes on: nobody rings for what has come before
  guard([&] {
    intake_.announce(given_up_);
    if (step_mail(now)) intake_.announce(given_up_);  // what it has handed over
    const bool news =
        groups_.any_at_work([](const GroupState& group) { return group.negotiator.has_news() || group.untold(); });
    more = intake_.take_begun();
    if (more || news || !flushed_) {
      decide(now);
      send();
      for (int look = 0; more && look < looks_at_begun; ++look) more = execute(now);
    }
    return false;
  });
  return more || !flushed_ || mail_.has_work() || mail_.needs_polling() ||
         groups_.any_at_work([](const GroupState& group) {
           return group.negotiator.decided() || group.negotiator.holds_up_others() || group.failure_reported;
         });
}

// ---- agree, decide, send: between the negotiators of this rank and its neighbours -----------------------------------

bool Cycle::agree() {
  if (given_up_) return false;
  bool moved = false;
  if (auto again = std::exchange(unheard_, std::nullopt)) on_message(std::move(*again));
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
  const auto direction = reader.get<Direction>(3);
  try {
    if (direction == Direction::of_group) {
      current_ = changes_.heard({kind, id}, message.from, reader);
    } else {
      current_ = kind == GroupKind::pair ? pairs_.state(id) : groups_.find({kind, id});
      if (!current_) return;  // removed, or the world has failed
      direction == Direction::to_parent ? current_->negotiator.receive_from_child(message.from, reader)
                                        : current_->negotiator.receive_from_parent(reader);
    }
  } catch (const std::bad_alloc&) {
    // The others expect that this rank knows the group; or that it has ended, and may say so only once.
    if (direction != Direction::to_parent) unheard_ = std::move(message);
    throw;
  }
  if (direction == Direction::of_group) {
    if (current_) changes_.open(*current_);
  }
  current_ = nullptr;
}

void Cycle::decide(Time now) {
  if (given_up_) return;
  time_has_come_ = patience_.look(intake_.submissions(), now);
  if (now >= deadlines_.next()) deadlines_.look(now);
  losses_.look(now, intake_.departure() != nullptr);
  pairs_.look();
  if (mail_.look(now)) again_ = time_has_come_ = true;
  for (auto& [key, group] : groups_.at_work()) {
    Negotiator& negotiator = group->negotiator;
    if (negotiator.at_rest()) continue;
    current_ = group;
    if (negotiator.joining()) negotiator.hold_join(pairs_.wait_for(*group->info));
    negotiator.decide();
  }
  current_ = nullptr;
}

bool Cycle::send() {
  if (given_up_) return false;
  bool moved = false;
  for (auto& [key, group] : groups_.at_work()) {
    const auto send = [&, key = key](int rank, Direction direction, auto&& append) {
      outgoing_.clear();
      outgoing_.put(key.kind);
      outgoing_.put(key.id);
      outgoing_.put(direction);
      append();
      control_.send(rank, outgoing_.bytes());
      counters_.bytes_sent += outgoing_.bytes().size();
      ++counters_.messages_sent;
      moved = true;
    };
    if (group->untold()) {
      group->negotiator.position().for_each_neighbour([&, group = group](int rank) {
        send(rank, Direction::of_group, [&] { GroupChanges::describe(*group, outgoing_); });
      });
      group->told = group->stage;  // last: if there is no memory, they are told again
    }
    group->negotiator.send([&](int rank, Direction direction, std::span<const std::byte> bytes) {
      send(rank, direction, [&] { outgoing_.append(bytes); });
    });
  }
  flushed_ = control_.flush();
  return moved;
}

// ---- execute: what has been agreed ----------------------------------------------------------------------------------

bool Cycle::execute(Time now) {
  bool moved = false;
  turns_.clear();
  std::size_t busy = 0;
  for (auto& [key, group] : groups_.at_work()) {
    const bool decided = apply(*group);
    busy += group->executor.busy() ? 1 : 0;
    turns_.push_back({group, decided, {}});
    moved |= decided;
  }
  if (busy > 1) {
    for (Turn& turn : turns_) turn.urgency = turn.group->executor.urgency();
    std::ranges::stable_sort(turns_, std::greater{}, &Turn::urgency);
  }
  for (const Turn& turn : turns_) moved |= step(turn, busy > 1, now);
  current_ = nullptr;
  moved |= step_mail(now);
  if (trailing_.due(now)) groups_.world().executor.progress(queue_.any_in_flight());
  const auto end = [&](const GroupState& group, const SubmissionPtr& late) {
    const Failure failure{ErrorCode::closed, "group " + group.info->name + " was removed; make it again"};
    completions_.complete(late, late->request.signature.kind == OpKind::remove_group ? nullptr : &failure);
  };
  if (changes_.remove_now(end)) trailing_.begin(now);  // what a group leaves with its backends ends later
  return leave_when_ready() || moved;
}

/// A library that moves messages may keep their last word.
bool Cycle::step_mail(Time now) {
  const bool polls = mail_.needs_polling(), moved = !given_up_ && mail_.step();
  if (moved && polls) trailing_.begin(now);
  return moved;
}

/// What has been decided since the last cycle. Returns whether something has.
bool Cycle::apply(GroupState& group) {
  current_ = &group;
  const bool decided = group.decided();
  const bool joined_before = std::exchange(group.was_joined, group.negotiator.any_joined());
  if (joined_before || group.was_joined) again_ |= pairs_.withdraw_refused(group);
  if (decided) apply_decisions(group);
  return decided;
}

/// A bounded amount of work: then it is another group's turn. `among_others`: they have work, too.
bool Cycle::step(const Turn& turn, bool among_others, Time now) {
  GroupState& group = *turn.group;
  current_ = &group;
  stepping_ = true;
  const bool advanced = group.executor.step(completions_.finished(), among_others);
  stepping_ = false;
  if (group.executor.take_trailing()) trailing_.begin(now);
  if (const auto fault = group.executor.take_fault()) {
    losses_.report(group, *fault);
    again_ = true;
  }
  if (turn.decided || advanced) group.count(counters_);
  completions_.publish();
  return advanced;
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
  take_each(decisions.gone, [&](Gone&& gone) { losses_.heard(gone, now_); });
  take_each(decisions.run, [&](std::variant<AgreedBucket, Failure, DevicesAreShared>&& next) {
    if (auto* const bucket = std::get_if<AgreedBucket>(&next)) {
      start(group, std::move(*bucket));
    } else if (auto* const fault = std::get_if<Failure>(&next)) {
      group.executor.fail_devices(*fault, completions_.finished());
    } else {
      changes_.devices_are_shared();
      again_ = true;
    }
  });
  if (const auto broken = std::exchange(decisions.broken, std::nullopt)) {
    group.executor.abandon(*broken, completions_.finished());
    completions_.publish();
    if (group.negotiator.retired()) {
      complete_all_of(group, *broken);
      group.held.clear();
    }
    if (!group.info->is_world()) return (void)(again_ |= pairs_.withdraw_refused(group));
    pairs_.end_with_world();
    // else what is of groups that have lost a rank fails, and what the world negotiates
    mail_.fail(*broken, !losses_.any() || group.negotiator.retired());
    changes_.end_with_world();
    again_ = true;
  }
}

/// An error may have made the group lose some of what is in flight.
void Cycle::complete_all_of(GroupState& group, const Failure& failure) {
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    const Request& request = submission->request;
    if (request.group->key() == group.info->key() && !request.match && submission != intake_.departure())
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
  if (kind == OpKind::remove_group) remove(*group.info);
  if (moves_data(kind) || kind == OpKind::barrier) {
    group.executor.start(std::move(bucket));
  } else if (kind == OpKind::open_group) {
    changes_.advance(group) ? vote_again(group, bucket.members.front()) : open(group);
  } else {
    completions_.complete(bucket.members.front());
  }
  if (paired) again_ |= pairs_.admit_next(group, paired->request.name());
}

/// An operation that never ran is done with.
void Cycle::finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure) {
  const OpKind kind = submission->request.signature.kind;
  if (kind == OpKind::open_group) {
    group.opening.reset();
    return open(group);  // it is of no more use: all that waited fails
  }
  if (kind == OpKind::remove_group && group.negotiator.over()) {  // there is nobody to agree with
    remove(*group.info);
    failure = nullptr;
  }
  completions_.complete(submission, failure);
  if (group.is_pair()) again_ |= pairs_.admit_next(group, submission->request.name());
}

/// Pairs need not agree on leaving: their ranks do so in the world. Where that has failed no end is agreed on: then the
/// others have fetched soon what they need of this rank's library.
bool Cycle::may_leave() {
  bool may = true;
  groups_.each([&](const GroupState& group) {
    may = may && !group.executor.busy() && (group.is_pair() || group.negotiator.may_leave());
  });
  may = may && mail_.leave();
  GroupState& world = groups_.world();
  settling_ = may && (world.negotiator.broken() ? trailing_.has_begun_lately(now_) : !world.executor.settled());
  return may && !settling_;
}

bool Cycle::leave_when_ready() {
  if (!intake_.departure() || !flushed_ || again_ || !may_leave()) return false;
  trailing_ = {};
  losses_.leave();
  const SubmissionPtr departure = intake_.take_departure();
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    if (submission == departure) continue;
    const Failure failure{
        ErrorCode::closed,
        describe(submission->request) + ": every rank closed the session; close sessions when all ranks are done"};
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
    const Submission* const oldest = concerned ? concerned->executor.oldest() : nullptr;
    if (stepping && failure.code == ErrorCode::mismatch && oldest && oldest->request.in_order()) {
      concerned->executor.halt();
      return concerned->negotiator.differs(*oldest->request.number);
    }
    bool reported = true;
    if (!concerned) changes_.fail_all(failure);
    for (auto& [key, group] : groups_.all()) {
      if (concerned && concerned != group) continue;
      group->executor.halt();
      const bool again = std::exchange(group->failure_reported, true) || group->negotiator.broken();
      reported &= !again;
      if (!again && stepping) group->negotiator.fail_group(failure);
      if (!again && !stepping) group->negotiator.retire(failure, queue_.closed(group->info->key()));
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
  mail_.fail(failure);
  losses_.leave();
  (void)intake_.take_departure();
  for (const SubmissionPtr& submission : queue_.in_flight()) completions_.complete(submission, &failure);
}

// ---- what the driver asks -------------------------------------------------------------------------------------------

bool Cycle::needs_attention() const {
  return mail_.has_work() || mail_.needs_polling() || !queue_.empty() || control_.pending() || !flushed_ || again() ||
         counting() || settling() || groups_.any_at_work([](const GroupState& group) {
           return group.executor.busy() || group.negotiator.joining();
         });
}

bool Cycle::operations_poll() const {
  return settling() || mail_.needs_polling() ||
         groups_.any_at_work([](const GroupState& group) { return group.executor.needs_polling(); });
}

}  // namespace kolo
