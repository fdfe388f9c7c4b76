#include "runtime/coordinator/coordinator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/host/cores.h"
#include "ops/host/pause.h"
#include "runtime/control/handshake.h"
#include "runtime/control/started_thread.h"
#include "runtime/world/parts.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto long_sleep = 1h;  // "until the doorbell rings"
constexpr std::chrono::nanoseconds polling_nap = 1ms;
constexpr auto polling_patience = 20ms;  // how long ranks on other nodes are looked for before they are asked to ring
constexpr int eager_passes = 64;

std::shared_ptr<const GroupInfo> group_of_all(const ControlChannel& control) {
  auto info = std::make_shared<GroupInfo>();
  info->name = "world";
  info->ranks.resize(static_cast<std::size_t>(control.topology().size()));
  std::iota(info->ranks.begin(), info->ranks.end(), 0);
  info->rank = control.rank();
  return info;
}

std::vector<InFlight> list(const PendingQueue& queue) {
  std::vector<InFlight> result;
  for (const SubmissionPtr& one : queue.in_flight()) {
    result.push_back(
        {one->signature.kind, one->name, one->group, one->occurrence, one->sequence, one->submitted, one->agreed});
  }
  return result;
}

}  // namespace

Coordinator::Coordinator(World world, const Config& config)
    : config_(config),
      control_(std::move(world.parts().control)),
      world_group_(group_of_all(*control_)),
      has_device_(world.parts().device.kind != DeviceKind::cpu),
      groups_(world_group_, *control_, config.fusion_bytes, std::move(world.parts().backends),
              world.parts().device.index, config.timings),
      oversubscribed_(
          more_ranks_than_cores(static_cast<int>(control_->topology().node_ranks(control_->rank()).size()))),
      watch_(
          config_, *control_, [this] { return list(queue_); }, [this] { return let_go_of_device(); }) {
  for (auto& message : agree_on_settings(*control_, config_)) on_message(std::move(message));
  watch_.opened();
  background_ = started_thread("looks after the session", [this] { run_in_background(); });
}

Coordinator::~Coordinator() {
  close(true);
  stop_ = true;
  control_->doorbell().ring();
}

// ---- any thread -----------------------------------------------------------------------------------------------------

void Coordinator::submit(const SubmissionPtr& submission, bool will_wait) {
  queue_.submit(submission);
  if (will_wait) return;
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    announce_inline();
  } else {
    control_->doorbell().ring();
  }
}

/// Tells the negotiator that the program looks at an operation for the first time. Done or not: where the program looks
/// must not depend on timing, since plans are cut there. But where it has just looked at another there is nothing more
/// to cut.
void Coordinator::push_flush(const SubmissionPtr& submission) {
  if (std::exchange(submission->flush_pushed, true)) return;
  if (submission->done && queue_.flushed_last()) return;
  queue_.push(PendingQueue::What::flush, submission);
}

void Coordinator::wait(const SubmissionPtr& submission) {
  push_flush(submission);
  if (submission->done) return;
  ++drivers_;
  const auto give_up = Clock::now() + std::chrono::microseconds(config_.spin_us);
  while (!submission->done) {
    if (role_.try_lock()) {
      const std::lock_guard role(role_, std::adopt_lock);
      drive_until(submission->done);
      leave_role();
      continue;
    }
    control_->doorbell().ring();  // whoever has the role, asleep or not, sees the flush
    if (Clock::now() < give_up) {
      oversubscribed_ ? (void)sched_yield() : pause_briefly();
    } else {
      --drivers_;
      control_->doorbell().ring();  // as a driver that leaves: the background thread must not count on this one
      submission->done.wait(false);
      ++drivers_;
    }
  }
  leave_drivers();
}

bool Coordinator::wait_for_launch(const SubmissionPtr& submission) {
  push_flush(submission);
  ++drivers_;
  while (!submission->launched) {
    if (role_.try_lock()) {
      const std::lock_guard role(role_, std::adopt_lock);
      drive_until(submission->launched);
      leave_role();
    } else {
      control_->doorbell().ring();  // whoever has the role sees the flush
      oversubscribed_ ? (void)sched_yield() : pause_briefly();
    }
  }
  leave_drivers();
  control_->doorbell().ring();  // the background thread goes on with what is on the device
  if (queue_.detach(submission)) return true;
  wait(submission);  // it is being completed
  return false;
}

/// The background thread may have gone to sleep because this thread looked after everything.
void Coordinator::leave_drivers() {
  --drivers_;
  if (background_relies_on_drivers_) control_->doorbell().ring();
}

void Coordinator::wait_at_most(const SubmissionPtr& submission, double seconds) {
  constexpr double answer_seconds = 5;  // of the rank that knows who has come
  const auto wait_until = [&](Clock::time_point deadline) {
    ++drivers_;
    while (!submission->done && Clock::now() < deadline) {
      if (role_.try_lock()) {
        const std::lock_guard role(role_, std::adopt_lock);
        drive_until(submission->done, deadline);
        leave_role();
      } else {
        control_->doorbell().ring();
        std::this_thread::sleep_for(polling_nap);
      }
    }
    leave_drivers();
    control_->doorbell().ring();
  };
  push_flush(submission);
  const auto start = Clock::now();
  const auto after = [&](double passed) {
    return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(passed));
  };
  wait_until(after(seconds));
  if (!submission->done) queue_.push(PendingQueue::What::overdue, submission, seconds);
  wait_until(after(seconds + answer_seconds));
  if (!submission->done) {
    const std::lock_guard role(role_);
    GroupState* group = groups_.find(submission->group->id);
    const int root = submission->group->ranks.front();
    if (group) {
      group->negotiator.give_up(
          submission,
          {ErrorCode::stalled,
           fmt::format("{} of group {}: rank {}, which knows who has come, did not answer for {} s after the {} s were "
                       "over; see what it does",
                       to_string(OpKind::monitored_barrier), submission->group->name, root, answer_seconds, seconds)});
    }
    control_->doorbell().ring();
  }
}

bool Coordinator::poll(const SubmissionPtr& submission) {
  push_flush(submission);
  if (submission->done) return true;
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    control_->doorbell().disarm();
    cycle();
    leave_role();
  } else {
    control_->doorbell().ring();
  }
  return submission->done;
}

void Coordinator::release(const SubmissionPtr& submission) noexcept {
  if (!submission->done) queue_.push(PendingQueue::What::withdraw, submission);
  wait(submission);
}

void Coordinator::close(bool unwinding) {
  if (closed_.exchange(true)) return;
  if (unwinding) {
    queue_.close(nullptr);
    queue_.push(PendingQueue::What::abandon, nullptr);
    control_->doorbell().ring();  // a thread that sleeps with the role looks, and fails with the rest
    const std::lock_guard role(role_);
    control_->doorbell().disarm();
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

void Coordinator::end(bool failed) {
  close(failed);
  stop_ = true;
  control_->doorbell().ring();
  const bool own_thread = background_.get_id() == std::this_thread::get_id();  // something it called has called exit()
  if (background_.joinable() && !own_thread) background_.join();
}

/// For the watchdog, before it ends the job. Libraries of devices want every other thread out of them when their work
/// is ended: so whoever has the role does it, if he is not in one of them himself.
bool Coordinator::let_go_of_device() {
  if (!has_device_) return true;
  device_to_end_ = true;
  const auto deadline = Clock::now() + 1s;
  while (!device_ended_ && Clock::now() < deadline) {
    control_->doorbell().ring();
    std::this_thread::sleep_for(polling_nap);
  }
  return device_ended_;
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
  stats.staged_bytes = counters_.staged_bytes;
  stats.bucket_seconds = static_cast<double>(counters_.bucket_ns) * 1e-9;
  return stats;
}

// ---- who runs the cycle ---------------------------------------------------------------------------------------------

/// For a thread that submits and does not wait: it announces itself, which costs less than waking the background
/// thread. That is woken only when something must be run, or watched because others wait for it.
void Coordinator::announce_inline() {
  guard([this] {
    announce();
    const bool news = std::any_of(groups_.begin(), groups_.end(),
                                  [](const auto& entry) { return entry.second->negotiator.has_news(); });
    return (news || !flushed_) && send_outgoing();
  });
  bool decided = !flushed_;
  for (auto& [id, group] : groups_)
    decided |= group->negotiator.decided() || group->negotiator.holds_up_others() || group->told;
  if (decided) control_->doorbell().ring();
}

/// For a thread that waits and has the role: looks again and again for a while, then sleeps between the rings.
void Coordinator::drive_until(const std::atomic<bool>& reached, Clock::time_point deadline) {
  Doorbell& doorbell = control_->doorbell();
  doorbell.disarm();
  auto idle_since = Clock::now();
  while (!reached && Clock::now() < deadline) {
    if (cycle()) {
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since < std::chrono::microseconds(config_.spin_us)) {
      oversubscribed_ ? (void)sched_yield() : pause_briefly();
    } else if (operations_poll() || (control_->needs_polling() && Clock::now() - idle_since < polling_patience)) {
      sched_yield();  // as MPI_Wait would: only polling moves the data, or brings word from other nodes
    } else {
      const auto ticket = doorbell.arm();
      const bool all_ring = control_->ask_to_be_rung();
      const bool moved = cycle();  // peers that moved before the doorbell was armed did not ring it
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (!moved) doorbell.sleep(ticket, std::clamp(left, std::chrono::nanoseconds(0), nap_between_rings(all_ring)));
      doorbell.disarm();
    }
  }
}

/// Leaves things so that the background thread, asleep on the doorbell, goes on with what is unfinished.
void Coordinator::leave_role() {
  control_->doorbell().arm();
  if (news() || busy()) control_->doorbell().ring();
}

void Coordinator::run_in_background() {
  Doorbell& doorbell = control_->doorbell();
  auto idle_since = Clock::now();
  while (!stop_) {
    std::uint32_t ticket = 0;
    std::chrono::nanoseconds nap{0};
    bool all_rang = false;
    {
      const std::lock_guard role(role_);
      doorbell.disarm();
      while (cycle() && drivers_ == 0) {
        idle_passes_ = 0;
        idle_since = Clock::now();
      }
      ticket = doorbell.arm();
      const bool quiet = Clock::now() - idle_since >= polling_patience && !operations_poll() && drivers_ == 0;
      const bool all_ring = quiet && control_->ask_to_be_rung();
      const bool moved = cycle();            // peers that moved before the doorbell was armed did not ring it
      background_relies_on_drivers_ = true;  // before it looks: a driver that leaves meanwhile sees it, and rings
      const bool relies =
          drivers_ > 0 && !again_;  // they run the cycle now, and ring if they leave something unfinished
      background_relies_on_drivers_ =
          relies && (moved || control_->needs_polling());  // else peers ring when there is more to do
      if (relies) {
        nap = nap_between_rings(true);
      } else if (!moved) {
        nap = all_ring ? nap_between_rings(true) : background_nap();
      }
      if (stop_) return;
      if (moved || all_ring || relies) idle_passes_ = 0;
      all_rang = all_ring || relies;
    }
    if (nap > std::chrono::nanoseconds(0)) {
      doorbell.sleep(ticket, nap);
    } else {
      sched_yield();
    }
    if (all_rang) idle_since = Clock::now();  // what woke this thread may be the first of several messages
    background_relies_on_drivers_ = false;
  }
}

/// How long a rank that has nothing to step may sleep unless it is rung. `all_ring`: by every peer.
std::chrono::nanoseconds Coordinator::nap_between_rings(bool all_ring) {
  const bool counting = standstill_.counting() || std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
                          return entry.second->patience.counting();
                        });
  return !all_ring || counting ? polling_nap : std::chrono::nanoseconds(long_sleep);
}

/// How long the background thread may sleep unless it is rung. Peers ring; but what MPI brings must be looked for: at
/// once as long as it is likely to come soon, then less and less often.
std::chrono::nanoseconds Coordinator::background_nap() {
  const bool polls = operations_poll() || control_->needs_polling();
  if (!polls) return nap_between_rings(true);
  ++idle_passes_;
  if (operations_poll() && idle_passes_ < eager_passes) return std::chrono::nanoseconds(0);
  return std::min<std::chrono::nanoseconds>(polling_nap, 20us * (1 << std::min(idle_passes_ / eager_passes, 6)));
}

}  // namespace kolo
