#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/control.h"
#include "runtime/executor.h"
#include "runtime/negotiator.h"

namespace kolo {

/// What one rank keeps for each group it belongs to: each group agrees and runs on its own.
struct GroupState {
  GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, std::int64_t fusion_bytes, BackendList backends)
      : info(std::move(group)),
        control(channel),
        position(tree_position(channel.topology(), info->ranks, channel.rank())),
        negotiator(info, position, fusion_bytes),
        executor(std::move(backends), *info) {
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
};

/// The groups of one rank, the world (id 0) first. Groups are numbered in the order in which the world agreed to make them, the
/// same on every rank, members or not.
class Groups {
 public:
  Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes, BackendList backends);

  GroupState& world() { return *states_.at(0); }
  GroupState* find(GroupId id);

  /// Makes the next group of these session ranks (ascending). Collective over the members, which do it in agreed order. Returns
  /// its description on this rank, member or not.
  std::shared_ptr<const GroupInfo> make(std::vector<int> ranks);
  void remove(GroupId id) { states_.erase(id); }

  /// A message for a group that the world has agreed to make, which this rank has not come to yet: kept until then.
  void keep(GroupId id, ControlChannel::Message message) { early_[id].push_back(std::move(message)); }
  std::vector<ControlChannel::Message> kept(GroupId id);
  bool not_made_yet(GroupId id) const { return id >= next_; }

  auto begin() { return states_.begin(); }
  auto end() { return states_.end(); }

 private:
  ControlChannel& control_;
  std::int64_t fusion_bytes_;
  std::map<GroupId, std::unique_ptr<GroupState>> states_;
  std::map<GroupId, std::vector<ControlChannel::Message>> early_;
  GroupId next_ = 1;
};

}  // namespace kolo
