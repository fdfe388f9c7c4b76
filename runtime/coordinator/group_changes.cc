#include "runtime/coordinator/group_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace kolo {
namespace {

using Stage = GroupState::Stage;

constexpr int orders = static_cast<int>(Order::program) + 1;

}  // namespace

GroupState* GroupChanges::named(const std::shared_ptr<const GroupInfo>& group) {
  GroupState* const known = groups_.find(group->key());
  if (known && known->info == group) return known;
  if (!program_.has(*group)) return nullptr;
  GroupState& state = known ? *known : make(group);
  state.info = group;
  return &state;
}

GroupState& GroupChanges::make(std::shared_ptr<const GroupInfo> info) {
  GroupState& group = groups_.make(std::move(info));
  if (const auto failure = failed_ ? failed_ : failure_of(*group.info)) group.negotiator.cut_off(*failure);
  return group;
}

/// In the words of the ranks that have it open, if a rank of it has gone and they know that.
std::optional<Failure> GroupChanges::failure_of(const GroupInfo& group) const {
  const auto lost = losses_.failure_of(group, true);
  return lost ? lost : groups_.world().negotiator.failure();
}

void GroupChanges::describe(const GroupState& group, Writer& to) {
  to.put(group.info->order);
  to.put(group.info->turn);
  to.put(static_cast<std::uint8_t>(group.stage != Stage::idle));
  to.put(static_cast<std::uint32_t>(group.info->ranks.size()));
  for (const int rank : group.info->ranks) to.put(static_cast<std::int32_t>(rank));
}

GroupState* GroupChanges::heard(GroupKey key, int from, Reader& reader) {
  const auto order = reader.get<Order>(orders);
  const auto turn = reader.get<std::uint64_t>();
  const bool opens = reader.get<std::uint8_t>() != 0;
  std::vector<int> ranks(reader.get_length(sizeof(std::int32_t)));
  for (int& rank : ranks) rank = reader.get<std::int32_t>();
  const bool with_sender = std::ranges::find(ranks, from) != ranks.end();
  const bool is_pair = key.kind == GroupKind::pair;
  if (is_pair && !groups_.find(key) && groups_.world().negotiator.broken()) return nullptr;
  std::shared_ptr<const GroupInfo> info;
  try {
    info = is_pair ? groups_.pair(key.id).info : program_.describe(std::move(ranks), order, turn);
  } catch (const Error& error) {
    throw Error(ErrorCode::backend, fmt::format("malformed control message ({})", error.what()));
  }
  if (info->id != key.id || !info->member() || !with_sender)
    throw Error(ErrorCode::backend, "malformed control message (of a group that this rank is not in)");
  GroupState* group = groups_.find(key);
  if (!group) {
    const bool removed = program_.had(*info);
    if (removed && !opens) return nullptr;  // the sender only says that it has ended: an answer would be answered
    group = &make(info);
    if (removed) {
      group->negotiator.cut_off({ErrorCode::closed, fmt::format("group {}: rank {} has removed it; remove a group when "
                                                                "all its ranks are done with it",
                                                                info->name, rank_)});
      removed_.push_back(key.id);
    }
  }
  return opens ? group : nullptr;
}

/// What goes wrong with the group on this rank is what it votes.
template <class Call>
void GroupChanges::try_to(GroupState& group, Call&& call) {
  std::string why;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    why = "there is not enough memory";
  } catch (const std::exception& error) {
    why = error.what();
  }
  group.opening->pending.objection =
      Failure{ErrorCode::backend, fmt::format("the group could not be made on rank {} ({})", rank_, why)};
}

void GroupChanges::open(GroupState& group) {
  if (group.stage != Stage::idle || group.takes_operations()) return;
  Request request;
  request.text = "kolo.open";
  request.group = group.info;
  request.signature.kind = OpKind::open_group;
  group.opening = std::make_shared<Submission>(std::move(request));
  group.stage = Stage::opens;
  try_to(group, [&] {
    groups_.equip(group);
    group.opening->pending.sizes = group.executor.introduction();
  });
  GroupState& world = groups_.world();
  if (!group.executor.has_devices() || world.executor.shares_devices() || world.negotiator.broken())
    return group.negotiator.submit(group.opening);
  wait_for_world_.push_back(group.info->key());
  world.negotiator.share_devices();
}

void GroupChanges::end_with_world() {
  for (auto& [key, group] : groups_.all()) {
    if (group->stage != Stage::open && !group->negotiator.broken())
      group->negotiator.cut_off(*failure_of(*group->info));
  }
  devices_are_shared();
}

void GroupChanges::devices_are_shared() {
  groups_.world().executor.share_devices();
  for (const GroupKey& key : std::exchange(wait_for_world_, {})) {
    GroupState* const group = groups_.find(key);
    if (group && group->opening) group->negotiator.submit(group->opening);
  }
}

bool GroupChanges::advance(GroupState& group) {
  if (std::exchange(group.opening->pending.introduced, true)) {
    group.opening.reset();
    group.stage = Stage::open;
    return false;
  }
  try_to(group, [&] { group.executor.introduce(group.opening->pending.of_ranks); });
  return true;
}

}  // namespace kolo
