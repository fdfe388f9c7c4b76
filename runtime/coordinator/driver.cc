#include "runtime/coordinator/driver.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "ops/host/process.h"
#include "runtime/control/handshake.h"
#include "runtime/control/started_thread.h"
#include "runtime/coordinator/in_flight.h"
#include "runtime/coordinator/rendezvous.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
constexpr auto safety_wakeup = 1s;  // who sleeps until the doorbell rings looks as often, and counts what it finds
constexpr auto rest = 10s;          // so long sleeps whoever has had nothing in flight since the last look
constexpr auto longest_preemption = 500ms;  // of a thread that is about to ring
constexpr std::chrono::nanoseconds polling_nap = 1ms;
constexpr int eager_passes = 64;
constexpr std::chrono::nanoseconds before_yields = 20us;
constexpr auto between_yields = 200us;  // beside processes that fill all cores each costs milliseconds

}  // namespace

Driver::Driver(std::unique_ptr<ControlChannel> control, BackendList backends, Device device, const Config& config)
    : config_(config),
      control_(std::move(control)),
      world_group_(group_of_all(control_->rank(), control_->topology().size())),
      program_groups_(world_group_, control_->rank(), nodes_apart(control_->topology(), backends)),
      has_device_(device.kind != DeviceKind::cpu),
      oversubscribed_(
          more_ranks_than_cores(static_cast<int>(control_->topology().node_ranks(control_->rank()).size()))),
      one_core_(has_one_core()),
      cycle_(queue_, program_groups_, *control_, world_group_, std::move(backends), config_, device.index,
             [this](const std::string& name) { watch_.completed(name); }),
      watch_(
          config_, *control_, [this] { return list(queue_); }, [this] { return end_device(); }) {
  refuse_forked();
  notice_forks();
  std::optional<Error> problem;
  try {
    watch_.start();
  } catch (const Error& error) {  // the others wait for this rank's settings
    problem = error;
  }
  auto early = agree_on_settings(*control_, config_);
  try {
    if (problem) throw Error(*problem);
    for (auto& message : early) cycle_.on_message(std::move(message));
    watch_.opened();
    background_ = started_thread("looks after the session", [this] { run_in_background(); });
  } catch (...) {
    close(true);  // they have a session with this rank in it
    throw;
  }
}

Driver::~Driver() {
  close(true);
  stop_ = true;
  control_->doorbell().ring();
}

// ---- any thread -----------------------------------------------------------------------------------------------------

std::shared_ptr<const GroupInfo> Driver::make_group(std::vector<int> ranks, Order order) {
  refuse_forked();
  if (closed_) throw Error(ErrorCode::closed, "the session is closed; make groups before close()");
  return program_groups_.make(std::move(ranks), order);
}

SubmissionPtr Driver::submit(Request&& request, bool will_wait) {
  refuse_forked();
  SubmissionPtr submission = queue_.submit(std::move(request));
  if (!will_wait) hand_over(submission->request.submitted);
  return submission;
}

/// What was queued goes on without this thread, which submits and does not wait.
void Driver::hand_over(Clock::time_point now) {
  auto role = role_.try_take();
  if (!role) return control_->doorbell().ring();
  // It announces what was queued itself, which costs less than waking the background thread. That is woken only when
  // something must be run, or watched because others wait for it; or if it has passed by, for what was not looked at.
  const bool more = cycle_.announce_and_send(now) || background_sleeps_too_long();
  const bool left = queue_.any_in_flight() || control_->pending() || cycle_.again() || device_to_end_;
  if (!more && !left) glances_.note_driven(false);
  const bool passed_by = role_.leave(role);
  if (more || passed_by) wake_background();
}

/// Says that the program looks at an operation for the first time. Done or not: where the program looks must not depend
/// on timing, since plans are cut there. But where it has just looked at another there is nothing more to cut; on
/// devices it counts that all were looked at. A wait for what was polled before cuts once more.
void Driver::flush(const SubmissionPtr& submission, bool waits) {
  if (submission->request.in_order()) return;  // there is no bucket to cut
  const bool again = submission->queued.flushed.exchange(true);
  const bool counts = submission->request.signature.device != DeviceKind::cpu && !again;
  if (again && !waits) return;
  if ((again || submission->completion.done) && !counts && queue_.flushed_last()) return;
  queue_.push(PendingQueue::What::flush, submission);
}

bool Driver::try_drive(Flag& reached, Clock::time_point deadline) {
  auto role = wanted_ > 0 ? Role::Held() : role_.try_take();
  if (!role) {
    control_->doorbell().ring();  // whoever has the role, asleep or not, sees what was queued
    return false;
  }
  drive_until(reached, deadline);
  leave_role(role);
  return true;
}

void Driver::wait(const SubmissionPtr& submission) {
  refuse_forked();
  flush(submission);
  wait_until(submission->completion.done);
}

/// Drives, or, where another thread does, spins for a while and then sleeps until that has reached it.
void Driver::wait_until(Flag& reached, Clock::time_point deadline) {
  if (reached) return;
  ++drivers_;
  std::optional<Clock::time_point> since;  // another thread was found driving
  do {
    if (try_drive(reached, deadline)) continue;
    const auto now = Clock::now();
    if (!since) since = now;
    if (now - *since < std::chrono::microseconds(config_.spin_us)) {
      one_core_ ? (void)sched_yield() : pause();  // the other thread may need this core
    } else {
      --drivers_;
      control_->doorbell().ring();  // as a driver that leaves: the background thread must not count on this one
      reached.wait_until(deadline);
      ++drivers_;
    }
  } while (!reached && Clock::now() < deadline);
  leave_drivers();
}

bool Driver::wait_for_launch(const SubmissionPtr& submission) {
  refuse_forked();
  flush(submission);
  wait_until(submission->completion.launched);
  control_->doorbell().ring();  // the background thread goes on with what is on the device
  if (queue_.detach(submission)) return true;
  wait(submission);  // it is being completed
  return false;
}

bool Driver::poll(const SubmissionPtr& submission) {
  refuse_forked();
  flush(submission, false);
  if (submission->completion.done) return true;
  if (auto role = role_.try_take()) {
    control_->doorbell().disarm();
    cycle(Clock::now());
    leave_role(role);
  } else {
    control_->doorbell().ring();
  }
  return submission->completion.done.is_set();
}

bool Driver::wait_until(const SubmissionPtr& submission, Clock::time_point deadline) {
  refuse_forked();
  flush(submission, false);
  wait_until(submission->completion.done, deadline);
  return submission->completion.done.is_set();
}

/// The program looks at an operation, and goes on.
void Driver::look(const SubmissionPtr& submission, bool waits) {
  refuse_forked();
  flush(submission, waits);
  hand_over(Clock::now());
}

void Driver::release(const SubmissionPtr& submission) noexcept {
  if (forked()) return;
  if (submission->may_be_withdrawn()) queue_.push(PendingQueue::What::withdraw, submission);
  wait(submission);
}

void Driver::close(bool abandons) {
  if (forked()) return;
  leave(abandons);
  continuations_.finish();  // all is complete, and what follows it posted: before this rank's departure was
}

void Driver::leave(bool abandons) {
  const bool first = !closed_.exchange(true);
  if (!abandons) {
    if (first) wait(queue_.close_with(world_group_));
    if (first) left_.set();
    return left_.wait();  // another thread closes
  }
  if (abandoned_.exchange(true)) {  // another thread does, whose last cycle may run yet; or something that calls
    if (leaves_ != std::this_thread::get_id()) left_.wait();
    return;
  }
  leaves_ = std::this_thread::get_id();
  if (left_) return;
  queue_.close();
  queue_.push(PendingQueue::What::abandon, nullptr);
  auto role = take_role();
  control_->doorbell().disarm();
  const auto deadline = Clock::now() + 100ms;
  do {
    cycle(Clock::now());
  } while (!cycle_.flushed() && Clock::now() < deadline);
  cycle_.fail_everything({ErrorCode::aborted, "the session was left without finishing (an error ended its program)"});
  leave_role(role);
  left_.set();
}

/// For what cannot wait until a thread that sleeps with the role has what it waits for.
Role::Held Driver::take_role() {
  ++wanted_;
  control_->doorbell().ring();
  auto role = role_.take();
  --wanted_;
  return role;
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
  if (!device_to_end_) {
    const bool moved = cycle_.run(now);
    if (cycle_.progressed()) watch_.progressed();
    return moved;
  }
  if (!device_ended_) cycle_.end_devices();
  device_ended_ = true;
  return false;
}

/// For a thread that waits and has the role: looks again and again for a while, then sleeps between the rings.
void Driver::drive_until(Flag& reached, Clock::time_point deadline) {
  Doorbell& doorbell = control_->doorbell();
  doorbell.disarm();
  Clock::time_point idle_since;
  for (bool moved = true; !reached && wanted_ == 0;) {
    const auto now = Clock::now();
    if (moved) idle_since = now;
    moved = cycle(now);
    if (now >= deadline) return;
    if (moved) continue;
    const std::chrono::nanoseconds idle = now - idle_since, spin = std::chrono::microseconds(config_.spin_us);
    if (idle >= std::min(spin, before_yields) && cycle_.operations_poll()) {
      sched_yield();  // only polling moves the data, and the rank that is waited for may need this core
    } else if (idle < spin) {
      pause();
    } else {
      const auto ticket = doorbell.arm();
      control_->listen();
      moved = cycle(now);  // peers that moved before the doorbell was armed did not ring it
      const auto nap = std::min<std::chrono::nanoseconds>(nap_between_rings(), deadline - now);
      const bool rung = moved || wanted_ != 0 || doorbell.sleep(ticket, nap);
      if (!rung && nap == safety_wakeup) look_for_late_work(ticket, nap);
      doorbell.disarm();
    }
  }
}

void Driver::pause() {
  oversubscribed_ ? (void)sched_yield() : pause_briefly();
}

/// Leaves things so that the background thread, asleep on the doorbell, goes on with what is unfinished. If that looks
/// soon by itself nobody rings: a program that waits for one operation after the other mostly comes first.
void Driver::leave_role(Role::Held& role) {
  role_.will_look();
  const bool left = queue_.any_in_flight() || cycle_.again() || (!cycle_.heard() && cycle_.needs_attention());
  glances_.note_driven(left);
  const bool glances = glances_.will_see(left);
  if (!glances) control_->doorbell().arm();
  if (!glances) control_->listen();
  const bool more = !glances && (stop_ || cycle_.needs_attention() || background_sleeps_too_long());
  if (role_.leave(role) || more) wake_background();
}

void Driver::run_in_background() {
  Doorbell& doorbell = control_->doorbell();
  Clock::time_point yielded;
  for (bool again = false, rung = true; !stop_;) {
    if (std::exchange(again, false) && Clock::now() - yielded >= between_yields) {
      sched_yield();  // a thread of the program may be queued for this core
      yielded = Clock::now();
    }
    std::uint32_t ticket = doorbell.ticket();
    const bool driven = glances_.begin(), leaves_it = driven && !rung && !glances_.looks() && !device_to_end_;
    std::chrono::nanoseconds nap = driven ? glances_.nap() : safety_wakeup;
    background_wakes_ = Clock::now() + nap;  // before it passes by: who leaves the role looks
    if (const auto role = leaves_it ? Role::Held() : role_.take_or_pass_by()) {
      doorbell.disarm();
      again = cycle(Clock::now()) && drivers_ == 0;
      if (again) idle_passes_ = 0;
      if (again) continue;
      if (!driven) {
        ticket = doorbell.arm();
        control_->listen();
        const bool moved = cycle(Clock::now());  // peers that moved before the doorbell was armed did not ring it
        background_relies_on_drivers_ = true;    // before it looks: a driver that leaves meanwhile sees it, and rings
        const bool relies = drivers_ > 0 && !cycle_.again();  // they run the cycle, and ring if they leave something
        // Else peers ring when there is more to do.
        background_relies_on_drivers_ = relies && (moved || cycle_.operations_poll());
        if (moved || relies) idle_passes_ = 0;
        again = moved && !relies;
        if (again) continue;
        nap = relies ? nap_between_rings() : background_nap();
      }
      if (stop_) return;
      background_wakes_ = Clock::now() + nap;
    }
    glances_.sleeps();
    rung = sleep_in_background(ticket, nap);
    glances_.end();
    background_relies_on_drivers_ = false;
  }
}

/// How long a rank that has nothing to step may sleep unless it is rung: no longer than until something may be overdue.
std::chrono::nanoseconds Driver::nap_between_rings() const {
  if (cycle_.counting()) return polling_nap;
  return std::clamp<std::chrono::nanoseconds>(cycle_.next_deadline() - Clock::now(), 0ns, safety_wakeup);
}

/// Until the doorbell rings, or the time has passed; who sleeps for the safety wake-up's time looks for late work.
/// Returns whether there is something to look at.
bool Driver::sleep_in_background(std::uint32_t ticket, std::chrono::nanoseconds nap) {
  if (nap == 0ns) return sched_yield() == 0;
  bool rung = false;
  while (!(rung = control_->doorbell().sleep(ticket, nap)) && nap >= safety_wakeup && !stop_) {
    background_rests_ = true;  // before it looks: who submits meanwhile sees it, and rings
    background_rests_ = queue_.has_rested_since(last_submission_seen_);
    nap = background_rests_ ? rest : safety_wakeup;
    background_wakes_ = Clock::now() + nap;
    const auto role = role_.try_take();
    if (role && look_for_late_work(ticket, nap)) break;  // else whoever has it looks
  }
  background_rests_ = false;
  return rung || nap >= safety_wakeup;
}

/// The doorbell, which stays armed, has not rung: there is nothing to do, or who has something new is about to ring, or
/// a ring is missing. What has come is left alone until then: some rings are for what is there. `nap`: the next one.
bool Driver::look_for_late_work(std::uint32_t ticket, std::chrono::nanoseconds nap) {
  if (cycle_.next_deadline() < Clock::now() + nap) return true;  // sleeps for less
  if (control_->pending() && control_->doorbell().sleep(ticket, longest_preemption)) return true;
  const bool moved = cycle(Clock::now());
  if (moved && !cycle_.acted_by_itself() && !control_->doorbell().sleep(ticket, longest_preemption)) ++late_wakeups_;
  return moved;
}

bool Driver::in_child() const {
  return forked();
}

SessionStats Driver::stats() const {
  SessionStats stats = cycle_.stats();
  stats.late_wakeups = late_wakeups_;
  return stats;
}

/// Peers ring; but what MPI brings must be looked for: at once as long as it is likely to come soon, then less often.
std::chrono::nanoseconds Driver::background_nap() {
  if (!cycle_.operations_poll()) return nap_between_rings();
  ++idle_passes_;
  if (idle_passes_ < eager_passes) return std::chrono::nanoseconds(0);
  return std::min<std::chrono::nanoseconds>(polling_nap, 20us * (1 << std::min(idle_passes_ / eager_passes, 6)));
}

}  // namespace kolo
