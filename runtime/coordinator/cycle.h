#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <kolo/config.h>
#include <kolo/session.h>

#include "runtime/control/channel.h"
#include "runtime/coordinator/completions.h"
#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/pairs.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// What the holder of the coordinator's role does, for all groups: announce, agree, decide, send, execute. Has no
/// thread and no clock: it is given the time and the channel.
class Cycle {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `gpu`: where this rank's tensors of devices are.
  Cycle(PendingQueue& queue, ControlChannel& control, std::shared_ptr<const GroupInfo> world, BackendList backends,
        const Config& config, int gpu, std::function<void(const std::string&)> on_complete);

  /// One pass. Returns whether anything moved.
  bool run(Time now);

  /// For a thread that submits and does not wait: announces what is queued and sends it to the neighbours. Returns
  /// whether there is more to do, which takes a run().
  bool announce_and_send(Time now);

  /// A message that came before the first run().
  void on_message(ControlChannel::Message message);

  /// The rank that knows who has come to a monitored barrier does not answer.
  void give_up_barrier(const SubmissionPtr& submission, const Failure& failure);

  /// Everything in flight here fails, and whatever is submitted later; nothing is heard or sent any more.
  void fail_everything(const Failure& failure) noexcept;

  /// The job ends: what runs on devices is ended, and nothing is touched from now on.
  void end_devices() noexcept;

  /// Whether there is something to do that no doorbell announces.
  bool busy() const;
  /// Whether only run() shows that an operation in flight has advanced.
  bool operations_poll() const;
  /// Whether a grace period runs: run() must be called to see its end.
  bool counting() const;
  /// Whether run() has something to do at once: decisions have announced something, which it sends.
  bool again() const { return again_; }
  /// Whether everything was sent.
  bool flushed() const { return flushed_; }
  /// Any thread.
  SessionStats stats() const;

 private:
  static constexpr const char* out_of_memory =
      "there is not enough memory for what the runtime needs itself; use less in each rank, or fewer ranks on this "
      "machine";

  bool announce();
  bool agree();
  void decide(Time now);
  bool send();
  bool execute();

  void announce(const PendingQueue::Item& item);
  GroupState* group_of(const SubmissionPtr& submission);
  void submit(GroupState& group, const SubmissionPtr& submission);
  void settle_joins_and_runs(Time now);
  bool execute(GroupState& group);
  void apply_decisions(GroupState& group, Decisions&& decisions);
  void start(GroupState& group, AgreedBucket&& bucket);
  void finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure);
  void change_groups(const SubmissionPtr& submission);
  bool may_leave() const;
  void leave();
  void give_up(const Failure& failure) noexcept;

  /// Calls `call`, in which whatever fails is this rank's runtime's failure.
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

  PendingQueue& queue_;
  ControlChannel& control_;
  Groups groups_;
  const int gpu_;
  Completions completions_;
  Pairs pairs_;
  GroupState* current_ = nullptr;  // whose messages or operations are being handled; null: of all
  std::vector<GroupId> removed_;   // to be let go of at the end of the cycle
  SubmissionPtr departure_;
  bool flushed_ = true;
  bool again_ = false;  // applying decisions has announced something, which the next cycle sends
  std::size_t submissions_ = 0;
  // Deadlock breaker: after 100 ms in which all wait, incomplete buckets are flushed.
  GracePeriod standstill_{std::chrono::milliseconds(100)};
  std::optional<Failure> given_up_;
  std::vector<PendingQueue::Item> drained_;

  struct Counters {
    std::atomic<std::uint64_t> agreements, tensors, buckets, full_announcements, bytes_sent, bytes_received,
        messages_sent, staged_bytes, bucket_ns;
  } counters_{};
};

}  // namespace kolo
