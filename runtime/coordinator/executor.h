#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <kolo/device_backend.h>

#include "ops/introductions.h"
#include "runtime/coordinator/rendezvous.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// Runs the agreed buckets of one group: starts each on the first backend that supports it (adasum, where none does, in
/// stages on the first that can serve these) and steps all that are in flight.
class Executor {
 public:
  struct Finished {
    SubmissionPtr submission;
    std::optional<Failure> failure;
  };

  /// `timed`: how long buckets take is measured.
  Executor(BackendList backends, const GroupInfo& group, bool timed = false);

  /// Whether some backend can run this; the same answer on every rank.
  bool supports(const Signature& signature) const;

  /// Before this rank says that it is ready: takes what running it needs, and keeps that with it. Returns why this rank
  /// cannot run it, if so.
  std::optional<Failure> prepare(Submission& submission) const;

  /// What the backends of this group have for another one, whose executor then introduces them.
  BackendList backends_for(const GroupInfo& group) const;

  /// As of Backend: of the first of this group's that has one.
  std::unique_ptr<ByteLane> lane(int peer) const {
    for (const auto& backend : backends_) {
      if (auto lane = backend->lane(peer)) return lane;
    }
    return nullptr;
  }

  /// As of Backend, for all backends of this group: what goes away serves nothing. Before supports() is asked.
  Introduction introduction() const { return introduction_of(backends_); }
  void introduce(std::span<const Introduction> members);

  /// World executor only: the ranks have agreed that other groups use their devices, too.
  void share_devices() { world_only_ = false; }
  bool shares_devices() const { return !world_only_; }

  /// Which group goes first: the one with the higher priority in flight, then the one with less to move.
  struct Urgency {
    int priority = 0;
    std::int64_t bytes = 0;  // of the first bucket, negated
    friend auto operator<=>(const Urgency&, const Urgency&) = default;
  };
  Urgency urgency() const;

  /// Takes a bucket on, to be started by step() in this order; its members share everything but their shapes (and, of
  /// one grouped submission, the types). A barrier has nothing to move and is complete at once. If this throws, the
  /// members are here nevertheless: call halt(), and abandon() fails them.
  void start(AgreedBucket&& bucket);

  /// Starts what is new, in order, unless something in flight holds the backend; advances everything in flight by a
  /// bounded amount of work and appends what completed. Returns whether anything did, or moved; before it says no it
  /// looks several times, unless a library must be called for that, or other groups have work. Throws what a backend
  /// threw: what is in flight cannot be trusted any more, call halt().
  bool step(std::vector<Finished>& finished, bool among_others = false);

  /// What an operation on a device failed with, once: nothing of the group is stepped until fail_devices().
  std::optional<Failure> take_fault() { return std::exchange(fault_to_report_, std::nullopt); }

  /// Every rank does this at the same place of what is agreed: what was taken on before, by a backend that recovers,
  /// fails unless it is complete here, and the backends go on; some of it is finished by step(), when they have
  /// recovered.
  void fail_devices(const Failure& failure, std::vector<Finished>& finished);

  /// Touches nothing from now on. What is in flight, and what is taken on later, stays so until abandon().
  void halt() { halted_ = true; }

  /// The job ends: what runs on devices and could wait for ever is ended, and nothing is touched from now on.
  void end_devices() noexcept;

  /// Fails everything in flight that is not complete, and abandons the backends.
  void abandon(const Failure& failure, std::vector<Finished>& finished);

  /// The oldest operation in flight, if there is one.
  const Submission* oldest() const { return running_.empty() ? nullptr : running_.front().members.front().get(); }
  bool has_devices() const { return !devices_.empty(); }
  bool busy() const { return !running_.empty() || !failed_.empty(); }
  bool at_rest() const { return !busy() && !fault_to_report_; }
  /// Whether only step() shows that an operation in flight has advanced.
  bool needs_polling() const;
  /// Whether an operation of a backend that must be called has advanced, or become complete, since this was asked last.
  bool take_trailing() { return std::exchange(trailing_, false); }
  /// As of Backend.
  void progress(bool in_flight);
  bool settled();
  std::uint64_t buckets_started() const { return buckets_started_; }
  std::uint64_t staged_bytes() const;
  /// All that buckets took so far, one added to the other.
  std::chrono::nanoseconds time_of_buckets() const { return time_of_buckets_; }
  /// Of the operation that was completed last: see Operation::method().
  const char* method() const { return method_; }

 private:
  struct InFlight {
    std::unique_ptr<Operation> operation;
    bool recovers = false;                            // it is a DeviceBackend's
    bool trails = false;                              // its backend must be called
    std::chrono::steady_clock::time_point started{};  // if that is measured
  };
  struct Running {
    std::vector<SubmissionPtr> members;
    std::uint64_t token = 0;
    bool meets = false;                        // it needs a rendezvous, before there are buckets
    std::unique_ptr<Rendezvous> rendezvous{};  // under way
    bool meeting_trails = false;               // the backend that they meet by must be called
    std::optional<Failure> failure{};
    std::vector<Bucket> buckets{};  // one for each type; none of what moves no data
    Urgency urgency{};
    std::size_t started = 0;           // of the buckets
    std::vector<InFlight> operations;  // started and not complete
    bool launched = false;             // of devices: the members know
    bool complete = false;
  };

  void find_devices();
  bool step_once(std::vector<Finished>& finished);
  bool finish_failed(std::vector<Finished>& finished);
  bool completes_now(Running& running) noexcept;
  bool advance(Running& running, bool& held, bool& moved);
  bool meet(Running& running, bool held, bool& moved);
  void make_buckets(Running& running, const std::vector<int>& absent);
  void drop_complete();
  static void publish_launch(Running& running);
  Backend* backend_of(const Signature& signature) const;
  Backend* runner_of(const Signature& signature) const;
  InFlight start_on_backend(const Bucket& bucket);
  bool completes(const InFlight& running);

  BackendList backends_;
  std::vector<DeviceBackend*> devices_;  // those of them
  int ranks_;
  int rank_;
  bool timed_;
  bool world_only_;  // no group but the world uses devices
  std::chrono::nanoseconds time_of_buckets_{0};
  const char* method_ = "";
  bool faulted_ = false;
  std::optional<Failure> fault_to_report_;
  std::vector<Running> running_;
  struct {
    std::vector<Bucket> buckets;
    std::vector<BucketTensor> tensors;
    std::vector<InFlight> operations;
  } room_;                        // all empty: memory that the next bucket need not allocate
  std::vector<Finished> failed_;  // on devices, which have not recovered
  bool halted_ = false;
  bool trailing_ = false;
  std::uint64_t buckets_started_ = 0;
};

}  // namespace kolo
