#include "runtime/coordinator/group_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace kolo {

std::shared_ptr<const GroupInfo> pair_info(int from, int to, int size, int rank) {
  auto info = std::make_shared<GroupInfo>();
  info->id = pair_id(from, to, size);
  info->name = fmt::format("{} to {}", from, to);
  info->ranks = {std::min(from, to), std::max(from, to)};
  info->rank = rank == info->ranks[0] ? 0 : rank == info->ranks[1] ? 1 : -1;
  info->pair = true;
  return info;
}

bool GracePeriod::ended(bool somebody_waits, std::size_t length) {
  if (!somebody_waits) {
    since_.reset();
    return false;
  }
  const auto now = Clock::now();
  if (!since_ || length != length_) since_ = now;
  length_ = length;
  if (now - *since_ < limit_) return false;
  since_.reset();
  return true;
}

Groups::Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, std::int64_t fusion_bytes,
               BackendList backends, int gpu, bool timed)
    : control_(control), fusion_bytes_(fusion_bytes), gpu_(gpu), timed_(timed) {
  states_[0] = std::make_unique<GroupState>(std::move(world), control, fusion_bytes, std::move(backends), gpu, timed);
}

GroupState* Groups::find(GroupId id) {
  const auto found = states_.find(id);
  return found == states_.end() ? nullptr : found->second.get();
}

/// Pairs first: their backends use the world's.
Groups::~Groups() {
  while (!states_.empty()) states_.erase(std::prev(states_.end()));
}

GroupState& Groups::pair(GroupId id) {
  auto& state = states_[id];
  if (!state) {
    const int size = control_.topology().size();
    const int from = static_cast<int>((id & 0x7fffffffu) / static_cast<GroupId>(size)),
              to = static_cast<int>((id & 0x7fffffffu) % static_cast<GroupId>(size));
    auto info = pair_info(from, to, size, control_.rank());
    if (!info->member())
      throw Error(ErrorCode::backend, "malformed control message (of a pair that this rank is not in)");
    auto backends = world().executor.backends_for(*info);
    state = std::make_unique<GroupState>(std::move(info), control_, fusion_bytes_, std::move(backends), gpu_, timed_);
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
    states_[info->id] =
        std::make_unique<GroupState>(info, control_, fusion_bytes_, world().executor.backends_for(*info), gpu_, timed_);
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
