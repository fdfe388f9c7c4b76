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

GroupState::GroupState(std::shared_ptr<const GroupInfo> group, ControlChannel& channel, const Config& config,
                       BackendList backends, bool opened)
    : info(std::move(group)),
      negotiator(info, tree_position(channel.topology(), ascending(info->ranks), channel.rank()), config.fusion_bytes,
                 static_cast<std::size_t>(config.remembered_tensors), config.tunes_fusion()),
      executor(std::move(backends), *info, config.timings),
      stage(opened ? Stage::open : Stage::idle) {
  if (stage == Stage::open) told = stage;
  channel.open(negotiator.position());
}

void GroupState::count(Counters& counters) {
  const auto add = [](Counters::Count& sum, std::uint64_t now, std::uint64_t& counted) {
    if (now != counted) sum += now - std::exchange(counted, now);
  };
  add(counters.agreements, negotiator.agreements(), agreements_counted);
  add(counters.buckets, executor.buckets_started(), buckets_counted);
  add(counters.staged_bytes, executor.staged_bytes(), staged_counted);
  if (*executor.method() != '\0') counters.method = executor.method();
  const auto time = executor.time_of_buckets();
  counters.bucket_ns += static_cast<std::uint64_t>((time - std::exchange(time_counted, time)).count());
}

bool GroupState::decided() {
  if (negotiator.over() && executor.oldest()) negotiator.end_if_left(*executor.oldest());
  return negotiator.decided() || !decisions.empty();
}

bool GroupState::at_rest() const {
  return negotiator.at_rest() && decisions.empty() && executor.at_rest() && held.empty() && !untold() &&
         !patience.counting();
}

Groups::Groups(std::shared_ptr<const GroupInfo> world, ControlChannel& control, const Config& config,
               BackendList backends)
    : control_(control), config_(config) {
  states_[{}] = std::make_unique<GroupState>(std::move(world), control, config, std::move(backends), true);
  put_to_work({}, this->world());
}

/// Pairs first: their backends use the world's.
Groups::~Groups() {
  while (!states_.empty()) states_.erase(std::prev(states_.end()));
}

GroupState* Groups::find(GroupKey key) {
  if (const auto found = at_work_.find(key); found != at_work_.end()) return found->second;
  const auto found = states_.find(key);
  return found == states_.end() ? nullptr : put_to_work(key, *found->second);
}

GroupState* Groups::put_to_work(GroupKey key, GroupState& group) {
  return at_work_[key] = &group;
}

void Groups::remove(GroupId id) {
  const GroupKey key{GroupKind::agreed, id};
  at_work_.erase(key);
  states_.erase(key);
}

const Groups::AtWork& Groups::all() {
  for (auto& [key, group] : states_) put_to_work(key, *group);
  return at_work_;
}

void Groups::rest() {
  constexpr std::size_t several = 8;  // a few cost less to look at than to leave out
  if (at_work_.size() <= several) return;
  std::erase_if(at_work_, [](const auto& entry) { return !entry.second->info->is_world() && entry.second->at_rest(); });
}

GroupState& Groups::pair(GroupId id) {
  if (GroupState* const known = find({GroupKind::pair, id})) return *known;
  const auto size = static_cast<GroupId>(control_.topology().size());
  auto info =
      pair_info(static_cast<int>(id / size), static_cast<int>(id % size), static_cast<int>(size), control_.rank());
  if (!info->member() || id / size >= size || id / size == id % size)
    throw Error(ErrorCode::backend, "malformed control message (of a pair that this rank is not in)");
  const bool opened = !world().executor.has_devices();
  auto backends = opened ? world().executor.backends_for(*info) : BackendList();
  return add(std::move(info), std::move(backends), opened);
}

GroupState& Groups::add(std::shared_ptr<const GroupInfo> info, BackendList backends, bool opened) {
  const GroupKey key = info->key();
  auto state = std::make_unique<GroupState>(std::move(info), control_, config_, std::move(backends), opened);
  GroupState& added = *put_to_work(key, *(states_[key] = std::move(state)));
  if (left_) added.negotiator.leave(*left_);
  return added;
}

GroupState& Groups::make(std::shared_ptr<const GroupInfo> info) {
  return add(std::move(info), {}, false);
}

void Groups::equip(GroupState& group) {
  group.executor = Executor(world().executor.backends_for(*group.info), *group.info, config_.timings);
}

}  // namespace kolo
