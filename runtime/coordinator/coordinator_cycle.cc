#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/coordinator/coordinator.h"
#include "runtime/negotiation/mismatch.h"

// What the holder of the coordinator's role does: announce → agree → execute, for all groups.

namespace kolo {

bool Coordinator::cycle() {
  if (device_to_end_) return end_device(), false;
  return guard([this] {
    again_ = false;
    bool moved = announce();
    moved |= agree();
    moved |= execute();
    return moved || again_;
  });
}

/// From the program to the negotiators, in the program's order.
bool Coordinator::announce() {
  if (queue_.empty()) return false;
  queue_.drain(drained_);
  for (const auto& [what, submission, sequence, seconds] : drained_) {
    if (given_up_ && submission) complete(submission, &*given_up_);
    if (given_up_) continue;
    if (what == PendingQueue::What::depart || what == PendingQueue::What::abandon) {
      departure_ = submission;
      departing_ = what;
      for (auto& [id, group] : groups_) group->negotiator.depart(what == PendingQueue::What::abandon);
      continue;
    }
    GroupState* group = group_of(submission);
    if (!group) continue;
    current_ = group;
    switch (what) {
      case PendingQueue::What::submit:
        ++submissions_;
        submit_to(*group, submission);
        break;
      case PendingQueue::What::flush:
        for (auto& [id, other] : groups_) other->negotiator.end_run();
        group->negotiator.flush(submission, sequence);
        break;
      case PendingQueue::What::withdraw:
        if (group->pair_queue.remove(submission)) {
          complete(submission);
        } else {
          group->negotiator.withdraw(submission);
        }
        break;
      case PendingQueue::What::overdue: group->negotiator.overdue(submission, seconds); break;
      default: break;
    }
    current_ = nullptr;
  }
  drained_.clear();
  return true;
}

/// The group that a submission is for; completes it with an error if this rank has no such group.
GroupState* Coordinator::group_of(const SubmissionPtr& submission) {
  if (is_pair_id(submission->group->id)) return &pair_state(submission->group->id);
  GroupState* group = groups_.find(submission->group->id);
  if (group && group->info == submission->group) return group;
  const Failure failure{ErrorCode::closed,
                        describe(submission->signature.kind, submission->name, submission->group->name) +
                            ": the group was removed, or belongs to another session; make it again"};
  complete(submission, &failure);
  return nullptr;
}

void Coordinator::submit_to(GroupState& group, const SubmissionPtr& submission) {
  if (!submission->failure && !group.executor.supports(submission->signature)) {
    submission->failure =
        Failure{ErrorCode::invalid_argument, "no backend of the session runs " + to_string(submission->signature)};
  }
  if (submission->signature.kind == OpKind::remove_group && queue_.busy(submission->subject->id)) {
    submission->failure =
        Failure{ErrorCode::invalid_argument, "the group has operations in flight; wait for them first"};
  }
  if (group.is_pair()) {
    if (const auto failure = refusal_of(*submission, true)) {
      complete(submission, &*failure);
      return;
    }
    if (!group.pair_queue.admit(submission)) return;
  }
  const auto before = group.negotiator.full_announcements();
  group.negotiator.submit(submission);
  if (group.is_pair())
    group.negotiator.end_run();  // what is sent is neither held back nor fused: its turn may depend on it
  counters_.full_announcements += group.negotiator.full_announcements() - before;
}

/// Between the negotiators of this rank and its neighbours.
bool Coordinator::agree() {
  if (given_up_) return false;
  bool moved = false;
  for (ControlChannel::Message message; control_->receive(message); moved = true) {
    counters_.bytes_received += message.bytes.size();
    on_message(std::move(message));
  }
  return send_outgoing() || moved;
}

void Coordinator::on_message(ControlChannel::Message message) {
  Reader reader(message.bytes);
  const auto id = reader.get<GroupId>();
  GroupState* group = is_pair_id(id) ? &pair_state(id) : groups_.find(id);
  if (!group) {
    if (groups_.not_made_yet(id)) groups_.keep(id, std::move(message));
    return;  // else it was removed: nobody needs this any more
  }
  current_ = group;
  if (reader.get<Direction>(2) == Direction::to_parent) {
    group->negotiator.receive_from_child(message.from, reader);
  } else {
    group->negotiator.receive_from_parent(reader);
  }
  current_ = nullptr;
}

bool Coordinator::send_outgoing() {
  if (given_up_) return false;
  settle_joins_and_runs();
  bool moved = false;
  for (auto& [id, group] : groups_) {
    current_ = group.get();
    group->negotiator.outgoing([&](int rank, Direction direction, std::span<const std::byte> records) {
      Writer message;
      message.put(id);
      message.put(direction);
      message.append(records);
      control_->send(rank, message.bytes());
      counters_.bytes_sent += message.bytes().size();
      ++counters_.messages_sent;
      moved = true;
    });
  }
  current_ = nullptr;
  flushed_ = control_->flush();
  return moved;
}

bool Coordinator::execute() {
  bool moved = false;
  for (auto& [id, group] : groups_) moved |= execute(*group);
  current_ = nullptr;
  for (GroupId id : std::exchange(removed_, {})) groups_.remove(id);
  if (departure_ && flushed_ && may_leave()) leave();
  return moved;
}

bool Coordinator::execute(GroupState& group) {
  current_ = &group;
  const auto agreements = group.negotiator.agreements();
  const bool decided = group.negotiator.decided();
  apply_decisions(group, group.negotiator.take());
  counters_.agreements += agreements - std::exchange(group.agreements_counted, agreements);
  const auto before = group.executor.buckets_started();
  const bool advanced = group.executor.step(finished_);
  counters_.buckets += group.executor.buckets_started() - before;
  if (const auto fault = group.executor.take_fault()) {
    group.negotiator.report_fault(*fault);
    again_ = true;
  }
  const bool moved = decided || advanced;
  if (!finished_.empty()) {
    const auto staged = group.executor.staged_bytes();
    counters_.staged_bytes += staged - std::exchange(group.staged_counted, staged);
    const auto time = group.executor.time_of_buckets();
    counters_.bucket_ns += static_cast<std::uint64_t>((time - std::exchange(group.time_counted, time)).count());
  }
  complete_finished();
  return moved;
}

/// Pairs need not agree on leaving: their ranks do so in the world.
bool Coordinator::may_leave() {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    GroupState& group = *entry.second;
    return !group.executor.busy() && (group.is_pair() || group.negotiator.all_departed() || group.negotiator.broken());
  });
}

void Coordinator::leave() {
  const SubmissionPtr departure = std::exchange(departure_, nullptr);
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    if (submission == departure) continue;
    const Failure failure{ErrorCode::closed,
                          describe(submission->signature.kind, submission->name, submission->group->name) +
                              ": every rank closed the session; close sessions when all ranks are done"};
    complete(submission, &failure);
  }
  complete(departure);
}

bool Coordinator::busy() {
  return !flushed_ || again_ || std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    return entry.second->executor.busy() || entry.second->negotiator.joining();
  });
}

bool Coordinator::operations_poll() {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second->executor.needs_polling(); });
}

// ---- when something fails -------------------------------------------------------------------------------------------

/// The one place where an error of this rank's runtime ends. The ranks of the group it concerns (of all, if that is not
/// known) are told; until all have agreed on it, which fails what is running everywhere with the same error, nothing is
/// touched. If even telling fails, this rank leaves alone.
void Coordinator::give_up(const Failure& failure) noexcept {
  GroupState* concerned = std::exchange(current_, nullptr);
  try {
    bool told = true;
    for (auto& [id, group] : groups_) {
      if (concerned && concerned != group.get()) continue;
      group->executor.halt();
      if (std::exchange(group->told, true) || group->negotiator.broken()) {
        told = false;
      } else {
        group->negotiator.break_down(failure);
      }
    }
    if (told) return;
    for (auto& [id, group] : groups_) group->negotiator.depart(true);
    send_outgoing();
  } catch (const std::exception&) {
  }
  fail_everything(failure);
}

/// Everything in flight here fails, and whatever is submitted later; nothing is heard or sent any more.
void Coordinator::fail_everything(const Failure& failure) noexcept {
  if (!given_up_) given_up_ = failure;
  for (auto& [id, group] : groups_) {
    group->executor.halt();
    group->executor.abandon(failure, finished_);
  }
  complete_finished();
  departure_.reset();
  for (const SubmissionPtr& submission : queue_.in_flight()) complete(submission, &failure);
}

/// The job is about to end.
void Coordinator::end_device() noexcept {
  if (device_ended_) return;
  for (auto& [id, group] : groups_) group->executor.end_devices();
  device_ended_ = true;
}

void Coordinator::complete(const SubmissionPtr& submission, const Failure* failure) {
  finished_.push_back({submission, failure ? std::optional(*failure) : std::nullopt});
  complete_finished();
}

/// All that finished_ has, of what is not complete yet.
void Coordinator::complete_finished() {
  completing_.clear();
  for (auto& [submission, failure] : finished_) {
    if (submission->done) continue;
    submission->failure = std::move(failure);
    completing_.push_back(submission.get());
  }
  if (!completing_.empty()) {
    watch_.completed(completing_.back()->name);
    queue_.retire(completing_);  // first: the next step may submit the same name as soon as the handle is done
  }
  for (Submission* submission : completing_) {
    submission->done = true;
    if (submission->signature.device != DeviceKind::cpu)
      submission->launched = true;  // last: without results it failed
    submission->done.notify_all();
  }
  finished_.clear();
}

}  // namespace kolo
