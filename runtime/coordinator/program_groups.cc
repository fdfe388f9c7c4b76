#include "runtime/coordinator/program_groups.h"

#include <fmt/format.h>
#include <kolo/detail/hash.h>
#include <kolo/error.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/operation/arguments.h"
#include "runtime/types/rank_set.h"

namespace kolo {

std::shared_ptr<const GroupInfo> group_of_all(int rank, int ranks) {
  auto info = std::make_shared<GroupInfo>();
  info->name = "world";
  info->ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(info->ranks.begin(), info->ranks.end(), 0);
  info->rank = rank;
  return info;
}

std::uint64_t ProgramGroups::hash(const std::vector<int>& ranks, Order order) {
  detail::Hash hash;
  hash.add(static_cast<std::uint64_t>(order));
  for (const int rank : ranks) hash.add(detail::mixed(static_cast<std::uint64_t>(rank) + 1));
  return hash.value();
}

std::shared_ptr<const GroupInfo> ProgramGroups::describe(std::vector<int> ranks, Order order,
                                                         std::uint64_t turn) const {
  if (const auto failure = check_members(ranks, world_->size())) throw Error(*failure);
  auto info = std::make_shared<GroupInfo>();
  RankSet set;
  for (const int rank : ranks) set.add(rank);
  info->id = detail::mixed(hash(ranks, order) + turn) | 1;  // 0 is the world
  info->name = fmt::format("of {}{}", to_string(set), turn == 0 ? "" : fmt::format(" (number {})", turn + 1));
  const auto place = std::ranges::find(ranks, rank_);
  info->rank = place == ranks.end() ? -1 : static_cast<int>(place - ranks.begin());
  info->ranks = std::move(ranks);
  info->order = order;
  const auto node = [&](int of) { return apart_.empty() ? 0 : apart_[static_cast<std::size_t>(of)]; };
  info->negotiated = order == Order::program && std::ranges::any_of(info->ranks, [&](int other) {
                       return node(other) != node(info->ranks.front());
                     });
  info->turn = turn;
  info->world = world_;
  return info;
}

std::shared_ptr<const GroupInfo> ProgramGroups::make(std::vector<int> ranks, Order order) {
  const std::lock_guard lock(mutex_);
  const auto known = made_.find(hash(ranks, order));
  auto info = describe(std::move(ranks), order, known == made_.end() ? 0 : known->second);
  if (!info->member()) return info;
  here_.insert(info->id);
  ++made_[hash(info->ranks, order)];
  return info;
}

void ProgramGroups::remove(const GroupInfo& group) {
  const std::lock_guard lock(mutex_);
  here_.erase(group.id);
}

bool ProgramGroups::has(const GroupInfo& group) const {
  const std::lock_guard lock(mutex_);
  return here_.contains(group.id);
}

bool ProgramGroups::had(const GroupInfo& group) const {
  const std::lock_guard lock(mutex_);
  const auto made = made_.find(hash(group.ranks, group.order));
  return made != made_.end() && group.turn < made->second && !here_.contains(group.id);
}

}  // namespace kolo
