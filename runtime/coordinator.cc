#include "runtime/coordinator.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "ops/pause.h"
#include "runtime/cores.h"
#include "runtime/handshake.h"
#include "runtime/world_parts.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto long_sleep = 1h;  // "until the bell rings"
constexpr std::chrono::nanoseconds polling_nap = 1ms;
constexpr int eager_passes = 64;

std::shared_ptr<const GroupInfo> group_of_all(const ControlChannel& control) {
  auto info = std::make_shared<GroupInfo>();
  info->name = "world";
  info->ranks.resize(static_cast<std::size_t>(control.topology().size()));
  std::iota(info->ranks.begin(), info->ranks.end(), 0);
  info->rank = control.rank();
  return info;
}

}  // namespace

Coordinator::Coordinator(World world, const Config& config)
    : config_(config),
      control_(std::move(world.parts().control)),
      world_group_(group_of_all(*control_)),
      negotiator_(world_group_, tree_position(control_->topology(), world_group_->ranks, control_->rank()), config.fusion_bytes),
      executor_(std::move(world.parts().backends)),
      oversubscribed_(more_ranks_than_cores(static_cast<int>(control_->topology().node_ranks(control_->rank()).size()))),
      watch_(config_, *control_, queue_) {
  agree_on_settings(*control_, config_);
  background_ = std::jthread([this] { run_in_background(); });
}

Coordinator::~Coordinator() {
  close(true);
  stop_ = true;
  control_->bell().ring();
}

// ---- any thread -----------------------------------------------------------------------------------------------------

void Coordinator::submit(const SubmissionPtr& submission, bool will_wait) {
  queue_.submit(submission);
  if (will_wait) return;
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    announce_inline();
  } else {
    control_->bell().ring();
  }
}

void Coordinator::wait(const SubmissionPtr& submission) {
  queue_.push(PendingQueue::What::flush, submission);
  if (submission->done) return;
  ++drivers_;
  const auto give_up = Clock::now() + std::chrono::microseconds(config_.spin_us);
  while (!submission->done) {
    if (role_.try_lock()) {
      const std::lock_guard role(role_, std::adopt_lock);
      drive_until(submission);
      leave_role();
    } else if (Clock::now() < give_up) {
      oversubscribed_ ? (void)sched_yield() : pause_briefly();
    } else {
      --drivers_;
      control_->bell().ring();  // whoever has the role, or takes it now, sees the flush
      submission->done.wait(false);
      ++drivers_;
    }
  }
  --drivers_;
}

bool Coordinator::poll(const SubmissionPtr& submission) {
  if (submission->done) return true;
  queue_.push(PendingQueue::What::flush, submission);
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    control_->bell().disarm();
    cycle();
    leave_role();
  } else {
    control_->bell().ring();
  }
  return submission->done;
}

void Coordinator::release(const SubmissionPtr& submission) noexcept {
  if (submission->done) return;
  queue_.push(PendingQueue::What::withdraw, submission);
  wait(submission);
}

void Coordinator::close(bool unwinding) {
  if (closed_.exchange(true)) return;
  if (unwinding) {
    queue_.close(nullptr);
    queue_.push(PendingQueue::What::abandon, nullptr);
    control_->bell().ring();  // a thread that sleeps with the role looks, and fails with the rest
    const std::lock_guard role(role_);
    control_->bell().disarm();
    const auto deadline = Clock::now() + 100ms;
    do {
      cycle();
    } while (!flushed_ && Clock::now() < deadline);
    fail_everything({ErrorCode::aborted, "the session was left without finishing (an error ended its program)"});
    control_->abandon();
    leave_role();
    return;
  }
  auto departure = std::make_shared<Submission>();
  departure->name = "kolo.close";
  departure->signature.kind = OpKind::barrier;
  departure->group = world_group_;
  queue_.close(departure);
  wait(departure);
}

SessionStats Coordinator::stats() const {
  SessionStats stats;
  stats.agreements = counters_.agreements;
  stats.tensors = counters_.tensors;
  stats.buckets = counters_.buckets;
  stats.full_announcements = counters_.full_announcements;
  stats.control_bytes_sent = counters_.bytes_sent;
  stats.control_bytes_received = counters_.bytes_received;
  stats.control_messages_sent = counters_.messages_sent;
  return stats;
}

// ---- the cycle, under role_ -----------------------------------------------------------------------------------------

bool Coordinator::cycle() {
  return guard([this] {
    bool moved = announce();
    moved |= agree();
    moved |= execute();
    return moved;
  });
}

template <class Call>
bool Coordinator::guard(Call&& call) {
  try {
    return call();
  } catch (const Error& error) {
    give_up(error.failure());
  } catch (const std::exception& error) {  // of a backend, or out of memory
    give_up({ErrorCode::backend, error.what()});
  }
  return true;
}

/// From the program to the negotiator, in the program's order.
bool Coordinator::announce() {
  if (queue_.empty()) return false;
  for (const auto& [what, submission, sequence] : queue_.drain()) {
    if (given_up_ && submission) complete(submission, &*given_up_);
    if (given_up_) continue;
    switch (what) {
      case PendingQueue::What::submit: negotiator_.submit(submission); break;
      case PendingQueue::What::flush: negotiator_.flush(submission, sequence); break;
      case PendingQueue::What::withdraw: negotiator_.withdraw(submission); break;
      case PendingQueue::What::depart:
        departure_ = submission;
        negotiator_.depart(false);
        break;
      case PendingQueue::What::abandon: negotiator_.depart(true); break;
    }
  }
  return true;
}

/// Between the negotiators of this rank and its neighbours.
bool Coordinator::agree() {
  if (given_up_) return false;
  bool moved = false;
  for (ControlChannel::Message message; control_->receive(message); moved = true) {
    counters_.bytes_received += message.bytes.size();
    Reader reader(message.bytes);
    (void)reader.get<GroupId>();  // one group so far
    if (reader.get<Direction>(2) == Direction::to_parent) {
      negotiator_.receive_from_child(message.from, reader);
    } else {
      negotiator_.receive_from_parent(reader);
    }
  }
  return send_outgoing() || moved;
}

bool Coordinator::send_outgoing() {
  if (given_up_) return false;
  bool moved = false;
  negotiator_.outgoing([&](int rank, Direction direction, std::span<const std::byte> records) {
    Writer message;
    message.put(negotiator_.group().id);
    message.put(direction);
    message.append(records);
    control_->send(rank, message.bytes());
    counters_.bytes_sent += message.bytes().size();
    ++counters_.messages_sent;
    moved = true;
  });
  flushed_ = control_->flush();
  return moved;
}

bool Coordinator::execute() {
  follow(negotiator_.take());
  executor_.step(finished_);
  counters_.buckets = executor_.buckets_started();
  const bool moved = !finished_.empty();
  for (const auto& [submission, failure] : finished_) complete(submission, failure ? &*failure : nullptr);
  finished_.clear();
  if (departure_ && flushed_ && !executor_.busy() && (negotiator_.all_departed() || negotiator_.broken())) {
    complete(std::exchange(departure_, nullptr));
  }
  return moved;
}

void Coordinator::follow(Decisions decisions) {
  for (const auto& [submission, failure] : decisions.failed) complete(submission, &failure);
  for (const SubmissionPtr& submission : decisions.withdrawn) complete(submission);
  for (auto& members : decisions.run) {
    counters_.tensors += members.size();
    executor_.start(std::move(members));
  }
  if (decisions.broken) {
    control_->abandon();
    executor_.abandon(*decisions.broken, finished_);
  }
  counters_.agreements = negotiator_.agreements();
  counters_.full_announcements = negotiator_.full_announcements();
}

/// The one place where an error of this rank's runtime ends. The ranks are told; until all have agreed on it, which fails
/// what is running everywhere with the same error, nothing is touched. If even telling fails, this rank leaves alone.
void Coordinator::give_up(const Failure& failure) noexcept {
  try {
    executor_.halt();
    if (!std::exchange(told_, true) && !negotiator_.broken()) {
      negotiator_.break_down(failure);
      return;
    }
    negotiator_.depart(true);
    send_outgoing();
  } catch (const std::exception&) {
  }
  fail_everything(failure);
}

/// Everything in flight here fails, and whatever is submitted later; nothing is heard or sent any more.
void Coordinator::fail_everything(const Failure& failure) noexcept {
  executor_.halt();
  if (!given_up_) given_up_ = failure;
  executor_.abandon(failure, finished_);
  for (const auto& [submission, why] : finished_) complete(submission, why ? &*why : nullptr);
  finished_.clear();
  departure_.reset();
  for (const SubmissionPtr& submission : queue_.in_flight()) complete(submission, &failure);
}

void Coordinator::complete(const SubmissionPtr& submission, const Failure* failure) {
  if (submission->done) return;
  submission->failure.reset();
  if (failure) submission->failure = *failure;
  watch_.completed(submission->name);
  queue_.retire(*submission);  // first: the next step may submit the same name as soon as the handle is done
  submission->done = true;
  submission->done.notify_all();
}

// ---- who runs the cycle ---------------------------------------------------------------------------------------------

/// For a thread that submits and does not wait: it announces itself, which costs less than waking the background thread. That is
/// woken only when something must be run.
void Coordinator::announce_inline() {
  guard([this] {
    announce();
    return send_outgoing();
  });
  if (negotiator_.decided() || !flushed_ || told_) control_->bell().ring();
}

/// For a thread that waits and has the role: looks again and again for a while, then sleeps between the rings.
void Coordinator::drive_until(const SubmissionPtr& submission) {
  Bell& bell = control_->bell();
  bell.disarm();
  auto idle_since = Clock::now();
  while (!submission->done) {
    if (cycle()) {
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since < std::chrono::microseconds(config_.spin_us)) {
      oversubscribed_ ? (void)sched_yield() : pause_briefly();
    } else if (executor_.needs_polling()) {
      sched_yield();  // as MPI_Wait would: only polling moves the data
    } else {
      const auto ticket = bell.arm();
      const bool moved = cycle();  // peers that moved before the bell was armed did not ring it
      if (!moved) bell.sleep(ticket, control_->needs_polling() ? polling_nap : std::chrono::nanoseconds(long_sleep));
      bell.disarm();
    }
  }
}

/// Leaves things so that the background thread, asleep on the bell, goes on with what is unfinished.
void Coordinator::leave_role() {
  control_->bell().arm();
  if (news() || busy()) control_->bell().ring();
}

void Coordinator::run_in_background() {
  Bell& bell = control_->bell();
  while (!stop_) {
    std::uint32_t ticket = 0;
    std::chrono::nanoseconds nap{0};
    {
      const std::lock_guard role(role_);
      bell.disarm();
      while (cycle() && drivers_ == 0) idle_passes_ = 0;
      ticket = bell.arm();
      const bool moved = cycle();  // peers that moved before the bell was armed did not ring it
      if (drivers_ > 0) {  // they run the cycle now, and ring if they leave something unfinished; MPI cannot ring
        nap = control_->needs_polling() ? polling_nap : std::chrono::nanoseconds(long_sleep);
      } else if (!moved) {
        nap = background_nap();
      }
      if (stop_) return;
    }
    if (nap > std::chrono::nanoseconds(0)) {
      bell.sleep(ticket, nap);
    } else {
      sched_yield();
    }
  }
}

/// How long the background thread may sleep unless it is rung. Peers ring; but what MPI brings must be looked for: at once as
/// long as it is likely to come soon, then less and less often.
std::chrono::nanoseconds Coordinator::background_nap() {
  const bool polls = executor_.needs_polling() || control_->needs_polling();
  if (!polls) return long_sleep;
  ++idle_passes_;
  if (executor_.needs_polling() && idle_passes_ < eager_passes) return std::chrono::nanoseconds(0);
  return std::min<std::chrono::nanoseconds>(polling_nap, 20us * (1 << std::min(idle_passes_ / eager_passes, 6)));
}

}  // namespace kolo
