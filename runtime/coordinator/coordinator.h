#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include <kolo/config.h>
#include <kolo/session.h>
#include <kolo/world.h>

#include "runtime/control/channel.h"
#include "runtime/coordinator/group_state.h"
#include "runtime/coordinator/pending_queue.h"
#include "runtime/watchdog/stall_watch.h"

namespace kolo {

/// One rank's runtime: takes what the program submits, agrees with the other ranks, starts and steps the collectives,
/// completes the handles. See runtime/THREADS.md for who may call what.
///
/// The coordinator's role is a lock, not a thread: a thread that waits for an operation takes it and runs the cycle
/// itself; the background thread acts for those who do not wait, and sleeps on this rank's doorbell when there is
/// nothing to do.
class Coordinator {
 public:
  Coordinator(World world, const Config& config);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Any thread.
  void submit(const SubmissionPtr& submission, bool will_wait);
  void wait(const SubmissionPtr& submission);
  /// For a monitored barrier: waits as wait() does, but asks who is missing after so many seconds.
  void wait_at_most(const SubmissionPtr& submission, double seconds);
  bool poll(const SubmissionPtr& submission);
  /// For device tensors: waits until the operation is on its way to its results, or done, no longer. Its name is free
  /// then; how it fails later is for whoever calls claim_failure(). False: it is done, and its failure, if any, is the
  /// caller's.
  bool wait_for_launch(const SubmissionPtr& submission);
  /// How something failed that nobody waits for any more; once.
  std::optional<Failure> claim_failure() { return queue_.claim_failure(); }
  /// The handle dies: withdraws the operation, or waits for it if that is too late.
  void release(const SubmissionPtr& submission) noexcept;
  void close(bool unwinding);
  /// Closes, and then does nothing any more: MPI may be finalized. Handles must not be used afterwards.
  void end(bool failed);

  const ControlChannel& control() const { return *control_; }
  const std::shared_ptr<const GroupInfo>& world_group() const { return world_group_; }
  const Config& config() const { return config_; }
  SessionStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* out_of_memory =
      "there is not enough memory for what the runtime needs itself; use less in each rank, or fewer ranks on this "
      "machine";

  // The cycle, by whoever holds the role. Each returns whether anything moved.
  bool cycle();
  bool announce();
  bool agree();
  bool send_outgoing();
  bool execute();
  bool execute(GroupState& group);
  void apply_decisions(GroupState& group, Decisions decisions);
  void make_output(GroupState& group, const SubmissionPtr& submission);
  void finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure);
  std::optional<Failure> refusal_of(const Submission& submission, bool is_new = false);
  GroupState& pair_state(GroupId id);
  void leave();
  void admit_next(GroupState& pair, const std::string& name);
  void refuse_joined(GroupState& group);
  void settle_joins_and_runs();
  void change_groups(const SubmissionPtr& submission);
  void on_message(ControlChannel::Message message);
  GroupState* group_of(const SubmissionPtr& submission);
  void submit_to(GroupState& group, const SubmissionPtr& submission);
  bool may_leave();
  template <class Call>
  bool guard(Call&& call) {
    try {
      return call();
    } catch (const Error& error) {
      give_up(error.failure());
    } catch (const std::bad_alloc&) {
      give_up({ErrorCode::backend, out_of_memory});
    } catch (const std::exception& error) {  // of a backend
      give_up({ErrorCode::backend, error.what()});
    }
    return true;
  }
  void give_up(const Failure& failure) noexcept;
  void fail_everything(const Failure& failure) noexcept;
  void complete(const SubmissionPtr& submission, const Failure* failure = nullptr);
  void complete_finished();

  void push_flush(const SubmissionPtr& submission);
  void announce_inline();
  void drive_until(const std::atomic<bool>& reached, Clock::time_point deadline = Clock::time_point::max());
  void leave_role();
  void run_in_background();
  bool news() const { return !queue_.empty() || control_->pending(); }
  bool busy();
  bool operations_poll();
  bool let_go_of_device();
  void end_device() noexcept;
  std::chrono::nanoseconds background_nap();
  std::chrono::nanoseconds nap_between_rings(bool all_ring);
  void leave_drivers();

  Config config_;
  std::unique_ptr<ControlChannel> control_;
  std::shared_ptr<const GroupInfo> world_group_;
  PendingQueue queue_;
  std::mutex role_;
  std::atomic<bool> background_relies_on_drivers_{false};
  std::atomic<int> drivers_{0};  // threads that wait and have not gone to sleep: they run the cycle
  std::atomic<bool> stop_{false};
  std::atomic<bool> closed_{false};
  const bool has_device_;
  std::atomic<bool> device_to_end_{false},
      device_ended_{false};  // asked by the watchdog, answered by whoever has the role

  // Under role_.
  Groups groups_;
  GroupState* current_ = nullptr;  // whose messages or operations are being handled; null: of all
  std::vector<GroupId> removed_;   // to be let go of at the end of the cycle
  SubmissionPtr departure_;
  std::optional<PendingQueue::What> departing_;  // and how
  bool flushed_ = true;
  bool again_ = false;  // following decisions has announced something, which the next cycle sends
  bool oversubscribed_ = false;
  int idle_passes_ = 0;
  std::size_t submissions_ = 0;
  GracePeriod standstill_{std::chrono::milliseconds(
      100)};  // of ranks that wait for buckets which this one's program, waiting too, has begun
  std::optional<Failure> given_up_;
  std::vector<Executor::Finished> finished_;
  std::vector<Submission*> completing_;
  std::vector<PendingQueue::Item> drained_;

  struct Counters {
    std::atomic<std::uint64_t> agreements, tensors, buckets, full_announcements, bytes_sent, bytes_received,
        messages_sent, staged_bytes, bucket_ns;
  } counters_{};

  StallWatch watch_;
  std::jthread background_;  // last: it uses everything above
};

}  // namespace kolo
