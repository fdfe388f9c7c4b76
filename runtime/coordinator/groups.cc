#include "runtime/coordinator/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace kolo {
namespace {

std::vector<int> ascending(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

std::shared_ptr<const GroupInfo> pair_info(int from, int to, int size, int rank) {
  auto info = std::make_shared<GroupInfo>();
  info->kind = GroupKind::pair;
  info->id = static_cast<GroupId>(from) * static_cast<GroupId>(size) + static_cast<GroupId>(to);
  info->name = fmt::format("{} to {}", from, to);
  info->ranks = {std::min(from, to), std::max(from, to)};
  info->rank = rank == info->ranks[0] ? 0 : rank == info->ranks[1] ? 1 : -1;
  return info;
}

bool GracePeriod::ended(bool others_wait, std::size_t length, Time now) {
  if (!others_wait) {
    since_.reset();
    return false;
  }
  if (!since_ || length != length_) since_ = now;
  length_ = length;
  if (now - *since_ < limit_) return false;
  since_.reset();
  return true;
}

GroupState::GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, std::int64_t fusion_bytes,
                       BackendList backends, bool timed)
    : info(std::move(group)),
      control(channel),
      position(tree_position(channel.topology(), ascending(info->ranks), channel.rank())),
      negotiator(info, position, fusion_bytes),
      executor(std::move(backends), *info, timed) {
  control.open(position);
}

Groups::Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes,
               BackendList backends, bool timed)
    : control_(control), fusion_bytes_(fusion_bytes), timed_(timed) {
  states_[{}] = std::make_unique<GroupState>(std::move(world), control, fusion_bytes, std::move(backends), timed);
}

/// Pairs first: their backends use the world's.
Groups::~Groups() {
  while (!states_.empty()) states_.erase(std::prev(states_.end()));
}

GroupState* Groups::find(GroupKey key) {
  const auto found = states_.find(key);
  return found == states_.end() ? nullptr : found->second.get();
}

GroupState& Groups::pair(GroupId id) {
  auto& state = states_[{GroupKind::pair, id}];
  if (!state) {
    const auto size = static_cast<GroupId>(control_.topology().size());
    auto info =
        pair_info(static_cast<int>(id / size), static_cast<int>(id % size), static_cast<int>(size), control_.rank());
    if (!info->member())
      throw Error(ErrorCode::backend, "malformed control message (of a pair that this rank is not in)");
    auto backends = world().executor.backends_for(*info);
    state = std::make_unique<GroupState>(std::move(info), control_, fusion_bytes_, std::move(backends), timed_);
  }
  return *state;
}

std::shared_ptr<const GroupInfo> Groups::make(std::vector<int> ranks) {
  auto info = std::make_shared<GroupInfo>();
  info->id = next_++;
  info->ranks = std::move(ranks);
  RankSet set;
  for (int rank : info->ranks) set.add(rank);
  info->name = fmt::format("{} ({})", info->id, to_string(set));
  const auto place = std::find(info->ranks.begin(), info->ranks.end(), control_.rank());
  info->rank = place == info->ranks.end() ? -1 : static_cast<int>(place - info->ranks.begin());
  world().executor.group_made();
  if (info->member()) {
    states_[info->key()] =
        std::make_unique<GroupState>(info, control_, fusion_bytes_, world().executor.backends_for(*info), timed_);
  }
  return info;
}

void Groups::keep(GroupId id, ControlChannel::Message message) {
  if (id >= next_) early_[id].push_back(std::move(message));
}

std::vector<ControlChannel::Message> Groups::kept(GroupId id) {
  const auto found = early_.find(id);
  if (found == early_.end()) return {};
  auto messages = std::move(found->second);
  early_.erase(found);
  return messages;
}

}  // namespace kolo
