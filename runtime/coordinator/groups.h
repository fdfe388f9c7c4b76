#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/control/channel.h"
#include "runtime/coordinator/executor.h"
#include "runtime/coordinator/pair_queue.h"
#include "runtime/negotiation/negotiator.h"

namespace kolo {

/// The group of the two ranks of a send and its receive, one for each direction: made by each rank when it first needs
/// one, and numbered by a rule, since nobody agrees on them.
std::shared_ptr<const GroupInfo> pair_info(int from, int to, int size, int rank);
/// The largest world whose pairs can be numbered.
inline constexpr int most_ranks_with_pairs = 46340;

/// Grace period: how long something incomplete is held while another rank waits for it.
class GracePeriod {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit GracePeriod(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Whether it has ended: nothing was added for a while. `length` is how much there is.
  bool ended(bool others_wait, std::size_t length, Time now);
  bool counting() const { return since_.has_value(); }

 private:
  std::chrono::milliseconds limit_;
  std::optional<Time> since_;
  std::size_t length_ = 0;
};

/// What one rank keeps for each group it belongs to: each group agrees and runs on its own.
struct GroupState {
  GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, std::int64_t fusion_bytes,
             BackendList backends, bool timed);
  ~GroupState() { control.close(position); }
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  std::shared_ptr<const GroupInfo> info;
  ControlChannel& control;
  TreePosition position;
  Negotiator negotiator;
  Executor executor;
  bool failure_reported = false;  // to the members, that something of this rank failed
  // Of runs that other ranks wait for. 20 ms: longer than the scheduler usually preempts a thread.
  GracePeriod grace_period{std::chrono::milliseconds(20)};
  PairQueue pair_queue;  // of a pair

  bool was_joined = false;  // some rank had joined when the decisions were last applied
  std::uint64_t agreements_counted = 0;
  std::uint64_t staged_counted = 0;
  std::chrono::nanoseconds time_counted{0};

  bool is_pair() const { return info->is_pair(); }
};

/// The groups of one rank, the world first. Agreed groups are numbered in the order in which the world agreed to make
/// them, the same on every rank, members or not.
class Groups {
 public:
  /// `timed`: how long buckets take is measured.
  Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes,
         BackendList backends, bool timed = false);
  ~Groups();

  GroupState& world() { return *states_.at({}); }
  GroupState* find(GroupKey key);
  /// The state of a pair that this rank belongs to, made if it is not there yet.
  GroupState& pair(GroupId id);

  /// Makes the next group of these session ranks, in this order. Collective over the members, which do it in agreed
  /// order. Returns its description on this rank, member or not.
  std::shared_ptr<const GroupInfo> make(std::vector<int> ranks);
  void remove(GroupId id) { states_.erase({GroupKind::agreed, id}); }

  /// Keeps a message for a group that the world has agreed to make and this rank has not made yet; nothing of one that
  /// was removed.
  void keep(GroupId id, ControlChannel::Message message);
  std::vector<ControlChannel::Message> kept(GroupId id);

  auto begin() { return states_.begin(); }
  auto end() { return states_.end(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }

 private:
  ControlChannel& control_;
  std::int64_t fusion_bytes_;
  bool timed_;
  std::map<GroupKey, std::unique_ptr<GroupState>> states_;
  std::map<GroupId, std::vector<ControlChannel::Message>> early_;
  GroupId next_ = 1;
};

}  // namespace kolo
