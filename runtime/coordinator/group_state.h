#pragma once

#include <algorithm>
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

/// Groups of two ranks that send() and recv() use, one for each direction: made by each rank when it first needs one,
/// and numbered by a rule, since nobody agrees on them.
constexpr bool is_pair_id(GroupId id) {
  return id >> 31 != 0;
}
constexpr GroupId pair_id(int from, int to, int size) {
  return GroupId{1} << 31 | (static_cast<GroupId>(from) * static_cast<GroupId>(size) + static_cast<GroupId>(to));
}
/// The largest world whose pairs can be numbered.
inline constexpr int most_ranks_with_pairs = 46340;
std::shared_ptr<const GroupInfo> pair_info(int from, int to, int size, int rank);

/// How long what a rank's program has begun is held back for the program to add to, while something waits for it.
class GracePeriod {
 public:
  explicit GracePeriod(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Whether it has ended: nothing was added for a while. `length` is how much there is.
  bool ended(bool somebody_waits, std::size_t length);
  bool counting() const { return since_.has_value(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds limit_;
  std::optional<Clock::time_point> since_;
  std::size_t length_ = 0;
};

/// What one rank keeps for each group it belongs to: each group agrees and runs on its own.
struct GroupState {
  GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, std::int64_t fusion_bytes,
             BackendList backends, int gpu, bool timed)
      : info(std::move(group)),
        control(channel),
        position(tree_position(channel.topology(), ascending(info->ranks), channel.rank())),
        negotiator(info, position, fusion_bytes, gpu),
        executor(std::move(backends), *info, timed) {
    control.open(position);
  }
  ~GroupState() { control.close(position); }
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  std::shared_ptr<const GroupInfo> info;
  ControlChannel& control;
  TreePosition position;
  Negotiator negotiator;
  Executor executor;
  bool told = false;  // the members, that something of this rank failed
  // Of ranks that wait for what this rank's program may still add to; longer than a thread is kept from its core on a
  // busy machine.
  GracePeriod patience{std::chrono::milliseconds(20)};
  PairQueue pair_queue;  // of a pair

  bool was_joined = false;  // some rank had joined when the decisions were last followed
  std::uint64_t agreements_counted = 0;
  std::uint64_t staged_counted = 0;
  std::chrono::nanoseconds time_counted{0};

  bool is_pair() const { return is_pair_id(info->id); }
  static std::vector<int> ascending(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
};

/// The groups of one rank, the world (id 0) first. Groups are numbered in the order in which the world agreed to make
/// them, the same on every rank, members or not.
class Groups {
 public:
  /// `gpu`: where this rank's tensors of devices are; `timed`: how long buckets take is measured.
  Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes,
         BackendList backends, int gpu = 0, bool timed = false);

  GroupState& world() { return *states_.at(0); }
  ~Groups();
  GroupState* find(GroupId id);
  /// The state of a pair that this rank belongs to, made if it is not there yet.
  GroupState& pair(GroupId id);

  /// Makes the next group of these session ranks, in this order. Collective over the members, which do it in agreed
  /// order. Returns its description on this rank, member or not.
  std::shared_ptr<const GroupInfo> make(std::vector<int> ranks);
  void remove(GroupId id) { states_.erase(id); }

  /// A message for a group that the world has agreed to make, which this rank has not come to yet: kept until then.
  void keep(GroupId id, ControlChannel::Message message) { early_[id].push_back(std::move(message)); }
  std::vector<ControlChannel::Message> kept(GroupId id);
  bool not_made_yet(GroupId id) const { return id >= next_ && !is_pair_id(id); }

  auto begin() { return states_.begin(); }
  auto end() { return states_.end(); }

 private:
  ControlChannel& control_;
  std::int64_t fusion_bytes_;
  int gpu_;
  bool timed_;
  std::map<GroupId, std::unique_ptr<GroupState>> states_;
  std::map<GroupId, std::vector<ControlChannel::Message>> early_;
  GroupId next_ = 1;
};

}  // namespace kolo
