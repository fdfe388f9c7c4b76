#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <kolo/config.h>

#include "runtime/control/channel.h"
#include "runtime/coordinator/completions.h"
#include "runtime/coordinator/deadlines.h"
#include "runtime/coordinator/group_changes.h"
#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/intake.h"
#include "runtime/coordinator/losses.h"
#include "runtime/coordinator/mail.h"
#include "runtime/coordinator/pairs.h"
#include "runtime/coordinator/patience.h"
#include "runtime/coordinator/pending_queue.h"

namespace kolo {

/// What the holder of the coordinator's role does, for all groups: announce, agree, decide, send, execute. Has no
/// thread and no clock: it is given the time and the channel.
class Cycle {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `gpu`: where this rank's tensors of devices are.
  Cycle(PendingQueue& queue, ProgramGroups& program_groups, ControlChannel& control,
        std::shared_ptr<const GroupInfo> world, BackendList backends, const Config& config, int gpu,
        std::function<void(const std::string&)> on_complete);

  /// One pass. Returns whether anything moved.
  bool run(Time now);

  /// For a thread that submits and does not wait: announces what is queued and sends it to the neighbours. Returns
  /// whether there is more to do, which takes a run().
  bool announce_and_send(Time now);

  /// A message that came before the first run().
  void on_message(ControlChannel::Message message);

  /// Everything in flight here fails, and whatever is submitted later; nothing is heard or sent any more.
  void fail_everything(const Failure& failure) noexcept;

  /// The job ends: what runs on devices is ended, and nothing is touched from now on.
  void end_devices() noexcept {
    groups_.each([](GroupState& group) { group.executor.end_devices(); });
  }

  /// Whether there is something to do, now or after a while, that no doorbell announces: whoever gives up the role then
  /// wakes a thread that takes it.
  bool needs_attention() const;
  /// Whether only run() shows that an operation in flight has advanced.
  bool operations_poll() const;
  /// Whether a grace period runs: run() must be called to see its end.
  bool counting() const { return patience_.counting(); }
  /// When run() must be called, at the latest: an operation may be overdue then, or a peer need this rank.
  Time next_deadline() const { return std::min({deadlines_.next(), trailing_.next(), losses_.next(), mail_.next()}); }
  /// Whether run() has something to do at once: decisions have announced something, which it sends.
  bool again() const { return again_ || intake_.has_more(); }
  /// Whether the last cycle has heard the others, and not only done what is complete without.
  bool heard() const { return heard_; }
  /// Whether the last run() has brought something further, which asking who is late does not.
  bool progressed() const { return progressed_; }
  /// Whether the last run() needed no ring: it has announced something of the program's, or a time had come.
  bool acted_by_itself() const { return has_announced_ || time_has_come_; }
  /// Whether everything was sent.
  bool flushed() const { return flushed_; }
  // Any thread:
  SessionStats stats() const {
    SessionStats stats = counters_.stats();
    stats.lost_ranks = losses_.lost();
    return stats;
  }
  bool lost_a_rank() const { return losses_.lost() > 0; }

 private:
  /// Of a group, in one cycle.
  struct Turn {
    GroupState* group;
    bool decided;  // something was applied
    Executor::Urgency urgency;
  };

  /// By who submits and does not wait, at what begins then: what all others have begun before mostly ends with two.
  static constexpr int looks_at_begun = 3;

  static constexpr const char* out_of_memory =
      "there is not enough memory for what the runtime needs itself; use less in each rank, or fewer ranks on this "
      "machine";

  bool agree();
  void decide(Time now);
  bool send();
  bool execute(Time now);

  /// What the program has said about the group meanwhile is announced.
  void open(GroupState& group) {
    again_ = true;
    intake_.release(group);
  }
  bool step_mail(Time now);
  bool apply(GroupState& group);
  bool step(const Turn& turn, bool among_others, Time now);
  void apply_decisions(GroupState& group);
  void complete_all_of(GroupState& group, const Failure& failure);
  void allocate(GroupState& group, const SubmissionPtr& submission);
  void vote_again(GroupState& group, const SubmissionPtr& submission) {
    again_ = true;
    group.negotiator.submit_again(submission);
  }
  void start(GroupState& group, AgreedBucket&& bucket);
  void finish(GroupState& group, const SubmissionPtr& submission, const Failure* failure);
  void remove(const GroupInfo& group) {
    changes_.remove(group);
    mail_.forget(group.id);
  }
  bool may_leave();
  bool settling() const { return intake_.departure() && settling_; }
  bool leave_when_ready();
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
    } catch (...) {
      give_up({ErrorCode::backend, "a backend threw something that is no exception of the standard library"});
    }
    return true;
  }

  PendingQueue& queue_;
  ControlChannel& control_;
  Counters counters_;
  Groups groups_;
  const int gpu_;
  Completions completions_;
  Pairs pairs_;
  Deadlines deadlines_;
  Losses losses_;
  Mail mail_;
  GroupChanges changes_;
  GroupState* current_ = nullptr;  // whose messages or operations are being handled; null: of all
  Intake intake_;
  Patience patience_;
  TrailingProgress trailing_;
  bool stepping_ = false;  // a backend is being called
  Time now_{};             // of this pass
  bool settling_ = false;  // all have left, but what they have started is not complete everywhere
  bool flushed_ = true;
  bool has_announced_ = false, time_has_come_ = false, progressed_ = false;  // in the last run
  bool heard_ = false;
  bool again_ = false;  // applying decisions has announced something, which the next cycle sends
  std::optional<Failure> given_up_;
  std::optional<ControlChannel::Message> unheard_;  // since there was no memory
  std::vector<Turn> turns_;                         // of this cycle
  Writer outgoing_;                                 // a message on its way to the channel
};

}  // namespace kolo
