#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <kolo/config.h>
#include <kolo/session.h>

#include "runtime/control/channel.h"
#include "runtime/coordinator/executor.h"
#include "runtime/coordinator/pair_queue.h"
#include "runtime/coordinator/patience.h"
#include "runtime/coordinator/pending_queue.h"
#include "runtime/negotiation/negotiator.h"

namespace kolo {

/// What a rank has done so far: counted by the holder of the role, read by any thread.
struct Counters {
  using Count = std::atomic<std::uint64_t>;
  Count agreements{0}, tensors{0}, buckets{0}, full_announcements{0}, bytes_sent{0}, bytes_received{0},
      messages_sent{0}, staged_bytes{0}, bucket_ns{0};
  std::atomic<const char*> method{""};

  SessionStats stats() const {
    return {.agreements = agreements,
            .tensors = tensors,
            .buckets = buckets,
            .full_announcements = full_announcements,
            .control_bytes_sent = bytes_sent,
            .control_bytes_received = bytes_received,
            .control_messages_sent = messages_sent,
            .staged_bytes = staged_bytes,
            .bucket_seconds = static_cast<double>(bucket_ns) * 1e-9,
            .method = method};
  }
};

/// The group of the two ranks of a send and its receive, one for each direction: made by each rank when it first needs
/// one, and numbered by a rule, since nobody agrees on them.
std::shared_ptr<const GroupInfo> pair_info(int from, int to, int size, int rank);

/// What one rank keeps for each group it belongs to: each group agrees and runs on its own.
///
/// A group that the program has made, and a pair that has backends of devices, is opened before its first operation:
/// its members make their backends and introduce them to each other. Until then it has none, and the program's
/// operations wait in front of the negotiation.
struct GroupState {
  enum class Stage : std::uint8_t { idle, opens, open };

  /// `opened`: it has its backends, and needs no opening.
  GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, const Config& config,
             BackendList backends, bool opened);
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  std::shared_ptr<const GroupInfo> info;
  Negotiator negotiator;
  Executor executor;
  Decisions decisions;            // taken from the negotiator, and not applied yet
  bool failure_reported = false;  // to the members, that something of this rank failed
  GroupPatience patience;
  PairQueue pair_queue;  // of a pair

  Stage stage;
  std::optional<Stage> told;             // what the neighbours have been told; of the world and opened pairs they know
  SubmissionPtr opening;                 // while it opens
  std::vector<PendingQueue::Item> held;  // of the program, until it is open

  bool was_joined = false;  // some rank had joined when the decisions were last applied
  std::uint64_t agreements_counted = 0, buckets_counted = 0, staged_counted = 0;
  std::chrono::nanoseconds time_counted{0};

  bool is_pair() const { return info->is_pair(); }
  /// Whether decisions are to be applied. Where a rank has left without having begun what runs here, that is one.
  bool decided();
  /// Whether the neighbours do not know that there is such a group, or that it opens.
  bool untold() const { return told < std::min(stage, Stage::opens); }
  /// Whether operations are announced at once, if only to fail.
  bool takes_operations() const { return stage == Stage::open || negotiator.over(); }
  /// Adds what has come since it was counted last.
  void count(Counters& counters);
  /// Whether only the program or another rank can give it something to do.
  bool at_rest() const;
};

/// The groups of one rank, the world first.
///
/// A cycle looks only at those at work: whoever looks one up may give it something to do, and so it is at work from
/// then on, until rest() finds that it has nothing to do.
class Groups {
 public:
  using AtWork = std::map<GroupKey, GroupState*>;

  Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, const Config& config, BackendList backends);
  ~Groups();

  GroupState& world() { return *states_.at({}); }
  GroupState* find(GroupKey key);
  /// The state of a pair that this rank belongs to, made if it is not there yet.
  GroupState& pair(GroupId id);

  /// Makes the state of a group, which is yet to be opened.
  GroupState& make(std::shared_ptr<const GroupInfo> info);
  void remove(GroupId id);
  /// Gives a group its backends, which are yet to be introduced.
  void equip(GroupState& group);

  /// This rank leaves: all groups that are made from now on are left at once.
  void leave(bool abandoned) { left_ = abandoned; }

  /// In the order of their keys. More may come while one goes through them.
  const AtWork& at_work() const { return at_work_; }
  /// Whether `holds` says so of a group at work.
  template <class Predicate>
  bool any_at_work(Predicate&& holds) const {
    return std::any_of(at_work_.begin(), at_work_.end(), [&](const auto& entry) { return holds(*entry.second); });
  }
  /// Calls call(group) for each, and puts none to work.
  template <class Call>
  void each(Call&& call) {
    for (auto& [key, group] : states_) call(*group);
  }
  /// Puts all to work.
  const AtWork& all();
  /// Leaves those out that have nothing to do, once there are several.
  void rest();

 private:
  GroupState* put_to_work(GroupKey key, GroupState& group);
  GroupState& add(std::shared_ptr<const GroupInfo> info, BackendList backends, bool opened);

  ControlChannel& control_;
  const Config& config_;
  std::map<GroupKey, std::unique_ptr<GroupState>> states_;
  AtWork at_work_;
  std::optional<bool> left_;  // and whether this rank abandoned what was in flight
};

}  // namespace kolo
