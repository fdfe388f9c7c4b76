#include "runtime/coordinator/driver.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/host/cores.h"
#include "runtime/control/handshake.h"
#include "runtime/control/started_thread.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto long_sleep = 1h;  // "until the doorbell rings"
constexpr std::chrono::nanoseconds polling_nap = 1ms;
constexpr auto polling_time = 20ms;  // how long ranks on other nodes are polled before they are asked to ring
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
    const Request& request = one->request;
    result.push_back({request.signature.kind, request.name, request.group, one->queued.occurrence, one->queued.sequence,
                      request.submitted, one->pending.agreed});
  }
  return result;
}

}  // namespace

Driver::Driver(std::unique_ptr<ControlChannel> control, BackendList backends, Device device, const Config& config)
    : config_(config),
      control_(std::move(control)),
      world_group_(group_of_all(*control_)),
      has_device_(device.kind != DeviceKind::cpu),
      oversubscribed_(
          more_ranks_than_cores(static_cast<int>(control_->topology().node_ranks(control_->rank()).size()))),
      cycle_(queue_, *control_, world_group_, std::move(backends), config_, device.index,
             [this](const std::string& name) { watch_.completed(name); }),
      watch_(
          config_, *control_, [this] { return list(queue_); }, [this] { return end_device(); }) {
  for (auto& message : agree_on_settings(*control_, config_)) cycle_.on_message(std::move(message));
  watch_.opened();
  background_ = started_thread("looks after the session", [this] { run_in_background(); });
}

Driver::~Driver() {
  close(true);
  stop_ = true;
  control_->doorbell().ring();
}

// ---- any thread -----------------------------------------------------------------------------------------------------

SubmissionPtr Driver::submit(Request&& request, bool will_wait) {
  SubmissionPtr submission = queue_.submit(std::move(request));
  if (will_wait) return submission;
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    announce_inline();
  } else {
    control_->doorbell().ring();
  }
  return submission;
}

/// Says that the program looks at an operation for the first time. Done or not: where the program looks must not depend
/// on timing, since plans are cut there. But where it has just looked at another there is nothing more to cut.
void Driver::flush(const SubmissionPtr& submission) {
  if (std::exchange(submission->queued.flushed, true)) return;
  if (submission->completion.done && queue_.flushed_last()) return;
  queue_.push(PendingQueue::What::flush, submission);
}

bool Driver::try_drive(const std::atomic<bool>& reached, Clock::time_point deadline) {
  if (!role_.try_lock()) {
    control_->doorbell().ring();  // whoever has the role, asleep or not, sees what was queued
    return false;
  }
  const std::lock_guard role(role_, std::adopt_lock);
  drive_until(reached, deadline);
  leave_role();
  return true;
}

void Driver::wait(const SubmissionPtr& submission) {
  const std::atomic<bool>& done = submission->completion.done;
  flush(submission);
  if (done) return;
  ++drivers_;
  const auto sleep_from = Clock::now() + std::chrono::microseconds(config_.spin_us);
  while (!done) {
    if (try_drive(done)) continue;
    if (Clock::now() < sleep_from) {
      pause();
    } else {
      --drivers_;
      control_->doorbell().ring();  // as a driver that leaves: the background thread must not count on this one
      done.wait(false);
      ++drivers_;
    }
  }
  leave_drivers();
}

bool Driver::wait_for_launch(const SubmissionPtr& submission) {
  const std::atomic<bool>& launched = submission->completion.launched;
  flush(submission);
  ++drivers_;
  while (!launched) {
    if (!try_drive(launched)) pause();
  }
  leave_drivers();
  control_->doorbell().ring();  // the background thread goes on with what is on the device
  if (queue_.detach(submission)) return true;
  wait(submission);  // it is being completed
  return false;
}

void Driver::wait_at_most(const SubmissionPtr& submission, double seconds) {
  constexpr double answer_seconds = 5;  // of the rank that knows who has come
  const std::atomic<bool>& done = submission->completion.done;
  const auto wait_until = [&](Clock::time_point deadline) {
    ++drivers_;
    while (!done && Clock::now() < deadline) {
      if (!try_drive(done, deadline)) std::this_thread::sleep_for(polling_nap);
    }
    leave_drivers();
    control_->doorbell().ring();
  };
  flush(submission);
  const auto start = Clock::now();
  const auto after = [&](double passed) {
    return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(passed));
  };
  wait_until(after(seconds));
  if (!done) queue_.push(PendingQueue::What::overdue, submission, seconds);
  wait_until(after(seconds + answer_seconds));
  if (done) return;
  const GroupInfo& group = *submission->request.group;
  const std::lock_guard role(role_);
  cycle_.give_up_barrier(
      submission,
      {ErrorCode::stalled,
       fmt::format("{} of group {}: rank {}, which knows who has come, did not answer for {} s after "
                   "the {} s were over; see what it does",
                   to_string(OpKind::monitored_barrier), group.name, group.ranks.front(), answer_seconds, seconds)});
  control_->doorbell().ring();
}

bool Driver::poll(const SubmissionPtr& submission) {
  flush(submission);
  if (submission->completion.done) return true;
  if (role_.try_lock()) {
    const std::lock_guard role(role_, std::adopt_lock);
    control_->doorbell().disarm();
    cycle(Clock::now());
    leave_role();
  } else {
    control_->doorbell().ring();
  }
  return submission->completion.done;
}

void Driver::release(const SubmissionPtr& submission) noexcept {
  if (!submission->completion.done) queue_.push(PendingQueue::What::withdraw, submission);
  wait(submission);
}

void Driver::close(bool abandons) {
  if (closed_.exchange(true)) return;
  if (!abandons) return wait(queue_.close_with(world_group_));
  queue_.close();
  queue_.push(PendingQueue::What::abandon, nullptr);
  control_->doorbell().ring();  // a thread that sleeps with the role looks, and fails with the rest
  const std::lock_guard role(role_);
  control_->doorbell().disarm();
  const auto deadline = Clock::now() + 100ms;
  do {
    cycle(Clock::now());
  } while (!cycle_.flushed() && Clock::now() < deadline);
  cycle_.fail_everything({ErrorCode::aborted, "the session was left without finishing (an error ended its program)"});
  control_->abandon();
  leave_role();
}

void Driver::end(bool failed) {
  close(failed);
  stop_ = true;
  control_->doorbell().ring();
  const bool own_thread = background_.get_id() == std::this_thread::get_id();  // something it called has called exit()
  if (background_.joinable() && !own_thread) background_.join();
}

/// For the watchdog, before it ends the job. Libraries of devices want every other thread out of them when their work
/// is ended: so whoever has the role does it, unless a call into such a library keeps that thread.
bool Driver::end_device() {
  if (!has_device_) return true;
  device_to_end_ = true;
  const auto deadline = Clock::now() + 1s;
  while (!device_ended_ && Clock::now() < deadline) {
    control_->doorbell().ring();
    std::this_thread::sleep_for(polling_nap);
  }
  return device_ended_;
}

// ---- who runs the cycle ---------------------------------------------------------------------------------------------

bool Driver::cycle(Clock::time_point now) {
  if (!device_to_end_) return cycle_.run(now);
  if (!device_ended_) cycle_.end_devices();
  device_ended_ = true;
  return false;
}

/// For a thread that submits and does not wait: it announces itself, which costs less than waking the background
/// thread. That is woken only when something must be run, or watched because others wait for it.
void Driver::announce_inline() {
  if (cycle_.announce_and_send(Clock::now())) control_->doorbell().ring();
}

/// For a thread that waits and has the role: looks again and again for a while, then sleeps between the rings.
void Driver::drive_until(const std::atomic<bool>& reached, Clock::time_point deadline) {
  Doorbell& doorbell = control_->doorbell();
  doorbell.disarm();
  auto now = Clock::now(), idle_since = now;
  for (; !reached && now < deadline; now = Clock::now()) {
    if (cycle(now)) {
      idle_since = Clock::now();  // a cycle may copy for long
    } else if (now - idle_since < std::chrono::microseconds(config_.spin_us)) {
      pause();
    } else if (cycle_.operations_poll() || (control_->needs_polling() && now - idle_since < polling_time)) {
      sched_yield();  // as MPI_Wait would: only polling moves the data, or brings word from other nodes
    } else {
      const auto ticket = doorbell.arm();
      const bool all_ring = control_->ask_to_be_rung();
      const bool moved = cycle(now);  // peers that moved before the doorbell was armed did not ring it
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (!moved) doorbell.sleep(ticket, std::clamp(left, std::chrono::nanoseconds(0), nap_between_rings(all_ring)));
      doorbell.disarm();
    }
  }
}

void Driver::pause() {
  oversubscribed_ ? (void)sched_yield() : pause_briefly();
}

/// Leaves things so that the background thread, asleep on the doorbell, goes on with what is unfinished.
void Driver::leave_role() {
  control_->doorbell().arm();
  if (!queue_.empty() || control_->pending() || cycle_.busy()) control_->doorbell().ring();
}

/// The background thread may have gone to sleep because this thread looked after everything.
void Driver::leave_drivers() {
  --drivers_;
  if (background_relies_on_drivers_) control_->doorbell().ring();
}

void Driver::run_in_background() {
  Doorbell& doorbell = control_->doorbell();
  auto idle_since = Clock::now();
  while (!stop_) {
    std::uint32_t ticket = 0;
    std::chrono::nanoseconds nap{0};
    bool all_rang = false;
    {
      const std::lock_guard role(role_);
      doorbell.disarm();
      while (cycle(Clock::now()) && drivers_ == 0) {
        idle_passes_ = 0;
        idle_since = Clock::now();
      }
      ticket = doorbell.arm();
      const bool quiet = Clock::now() - idle_since >= polling_time && !cycle_.operations_poll() && drivers_ == 0;
      const bool all_ring = quiet && control_->ask_to_be_rung();
      const bool moved = cycle(Clock::now());  // peers that moved before the doorbell was armed did not ring it
      background_relies_on_drivers_ = true;    // before it looks: a driver that leaves meanwhile sees it, and rings
      const bool relies =
          drivers_ > 0 && !cycle_.again();  // they run the cycle now, and ring if they leave something unfinished
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
std::chrono::nanoseconds Driver::nap_between_rings(bool all_ring) const {
  return !all_ring || cycle_.counting() ? polling_nap : std::chrono::nanoseconds(long_sleep);
}

/// How long the background thread may sleep unless it is rung. Peers ring; but what MPI brings must be looked for: at
/// once as long as it is likely to come soon, then less and less often.
std::chrono::nanoseconds Driver::background_nap() {
  const bool operations_poll = cycle_.operations_poll();
  if (!operations_poll && !control_->needs_polling()) return nap_between_rings(true);
  ++idle_passes_;
  if (operations_poll && idle_passes_ < eager_passes) return std::chrono::nanoseconds(0);
  return std::min<std::chrono::nanoseconds>(polling_nap, 20us * (1 << std::min(idle_passes_ / eager_passes, 6)));
}

}  // namespace kolo
