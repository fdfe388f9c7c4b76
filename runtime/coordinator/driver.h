#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <kolo/backend.h>
#include <kolo/config.h>
#include <kolo/session.h>

#include "runtime/control/channel.h"
#include "runtime/coordinator/continuations.h"
#include "runtime/coordinator/cycle.h"
#include "runtime/coordinator/glances.h"
#include "runtime/coordinator/pending_queue.h"
#include "runtime/coordinator/role.h"
#include "runtime/watchdog/stall_watch.h"

namespace kolo {

/// One rank's runtime: takes what the program submits, and sees to it that a thread runs the cycle. See
/// runtime/THREADS.md for who may call what.
///
/// The coordinator's role is a lock, not a thread: a thread that waits for an operation takes it and runs the cycle
/// itself; the background thread acts for those who do not wait, and sleeps on this rank's doorbell when there is
/// nothing to do.
class Driver {
 public:
  using Clock = std::chrono::steady_clock;

  /// `device`: this rank's GPU, or the host. The backends serve all ranks.
  Driver(std::unique_ptr<ControlChannel> control, BackendList backends, Device device, const Config& config);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Any thread.
  std::uint32_t declare(std::string_view name) { return queue_.declare(name); }
  /// As of ProgramGroups. Throws Error{closed}.
  std::shared_ptr<const GroupInfo> make_group(std::vector<int> ranks, Order order);
  bool has_group(const GroupInfo& group) const { return program_groups_.has(group); }
  SubmissionPtr submit(Request&& request, bool will_wait);
  void wait(const SubmissionPtr& submission);
  bool poll(const SubmissionPtr& submission);
  /// Waits no longer than until then. Returns whether it is done.
  bool wait_until(const SubmissionPtr& submission, Clock::time_point deadline);
  void wait_for(Flag& reached) { wait_until(reached); }
  /// Calls the listener once when the operation is done; false: it is, and the listener is not called.
  bool listen(const SubmissionPtr& submission, const Listener& listener) {
    look(submission, false);
    return queue_.listen(submission, listener);
  }
  void stop_listening(const SubmissionPtr& submission, const Listener& listener) {
    queue_.stop_listening(submission, listener);
  }
  void on_done(const SubmissionPtr& submission, std::function<void(const Error*)> function) {
    continuations_.on_done(submission, std::move(function));
    look(submission, false);
  }
  void detach(const SubmissionPtr& submission, std::shared_ptr<const void> keep_alive) {
    continuations_.detach(submission, std::move(keep_alive));
    look(submission, true);
  }
  /// For device tensors: waits until the operation is on its way to its results, or done, no longer. Its name is free
  /// then; how it fails later is for whoever calls claim_failure(). False: it is done, and its failure, if any, is the
  /// caller's.
  bool wait_for_launch(const SubmissionPtr& submission);
  /// How something failed that nobody waits for any more; once.
  std::optional<Failure> claim_failure() { return queue_.claim_failure(); }
  /// It is done: throws how it has failed, or else what claim_failure() knows.
  void conclude(const Submission& submission) { continuations_.conclude(submission); }
  /// The handle dies: withdraws the operation, or waits for it if that is too late.
  void release(const SubmissionPtr& submission) noexcept;
  void close(bool abandons);
  /// Closes, and then does nothing any more: MPI may be finalized. Handles must not be used afterwards.
  void end(bool failed);

  /// Whether this process is a child that fork() made of the driver's: nothing of it may act here.
  bool in_child() const;
  /// Is never destroyed: there, that would act.
  void stay(std::shared_ptr<Driver> self) noexcept { self_ = std::move(self); }
  const ControlChannel& control() const { return *control_; }
  const std::shared_ptr<const GroupInfo>& world_group() const { return world_group_; }
  const Config& config() const { return config_; }
  SessionStats stats() const;
  bool lost_a_rank() const { return cycle_.lost_a_rank(); }

 private:
  bool cycle(Clock::time_point now);
  void flush(const SubmissionPtr& submission, bool waits = true);
  void look(const SubmissionPtr& submission, bool waits);
  /// Takes the role, if it is free, and drives until then. Returns whether it had it.
  bool try_drive(Flag& reached, Clock::time_point deadline);
  void drive_until(Flag& reached, Clock::time_point deadline);
  void wait_until(Flag& reached, Clock::time_point deadline = Clock::time_point::max());
  void hand_over(Clock::time_point now);
  void leave(bool abandons);
  Role::Held take_role();
  void pause();
  bool sleep_in_background(std::uint32_t ticket, std::chrono::nanoseconds nap);
  bool look_for_late_work(std::uint32_t ticket, std::chrono::nanoseconds nap);
  void leave_role(Role::Held& role);
  /// Though it may not have armed the doorbell.
  void wake_background() {
    control_->doorbell().arm();
    control_->doorbell().ring();
  }
  /// For a deadline, or for what is in flight.
  bool background_sleeps_too_long() const {
    return cycle_.next_deadline() < background_wakes_.load() || (background_rests_ && queue_.any_in_flight());
  }
  /// The background thread may have gone to sleep because this thread looked after everything.
  void leave_drivers() {
    --drivers_;
    if (background_relies_on_drivers_) control_->doorbell().ring();
  }
  void run_in_background();
  bool end_device();
  std::chrono::nanoseconds background_nap();
  std::chrono::nanoseconds nap_between_rings() const;

  const Config config_;
  const std::unique_ptr<ControlChannel> control_;
  const std::shared_ptr<const GroupInfo> world_group_;
  PendingQueue queue_;
  ProgramGroups program_groups_;
  Continuations continuations_{queue_, config_};
  Role role_;
  std::atomic<bool> background_relies_on_drivers_{false};
  std::atomic<int> drivers_{0};  // threads that wait and have not gone to sleep: they run the cycle
  std::atomic<bool> stop_{false};
  std::atomic<bool> closed_{false}, abandoned_{false};  // nothing is submitted any more; nor waited for
  std::atomic<std::thread::id> leaves_{};               // who abandons
  Flag left_;                                           // every rank has left, or this one alone
  std::atomic<Clock::time_point> background_wakes_{Clock::time_point::min()};
  std::atomic<bool> background_rests_{false};  // sleeps for long, since nothing is in flight: who submits rings
  Glances glances_;
  std::uint64_t last_submission_seen_ = 0;  // by the background thread
  std::atomic<int> wanted_{0};              // threads that cannot wait for the role: whoever has it leaves it
  std::atomic<std::uint64_t> late_wakeups_{0};
  const bool has_device_;
  const bool oversubscribed_;
  const bool one_core_;
  std::atomic<bool> device_to_end_{false}, device_ended_{false};  // asked by the watchdog, answered with the role

  // Under role_.
  Cycle cycle_;
  int idle_passes_ = 0;

  std::shared_ptr<Driver> self_;
  StallWatch watch_;
  std::jthread background_;  // last: it uses everything above
};

}  // namespace kolo
