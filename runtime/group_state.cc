#include "runtime/group_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kolo {

Groups::Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes,
               BackendList backends)
    : control_(control), fusion_bytes_(fusion_bytes) {
  states_[0] = std::make_unique<GroupState>(std::move(world), control, fusion_bytes, std::move(backends));
}

GroupState* Groups::find(GroupId id) {
  const auto found = states_.find(id);
  return found == states_.end() ? nullptr : found->second.get();
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
  if (info->member()) {
    states_[info->id] = std::make_unique<GroupState>(info, control_, fusion_bytes_, world().executor.backends_for(*info));
  }
  return info;
}

std::vector<ControlChannel::Message> Groups::kept(GroupId id) {
  const auto found = early_.find(id);
  if (found == early_.end()) return {};
  auto messages = std::move(found->second);
  early_.erase(found);
  return messages;
}

}  // namespace kolo
