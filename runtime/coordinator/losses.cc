#include "runtime/coordinator/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto leaving_takes_within = 1500ms;  // until all know that all do, or why one does

}  // namespace

void Losses::unexplained(GroupState& group, const Failure& failure) {
  group.executor.halt();
  act_unless_explained(*group.info, [failure](Negotiator& negotiator) { negotiator.fail_group(failure); });
}

void Losses::report(GroupState& group, const Failure& fault) {
  if (fault.code != ErrorCode::aborted) return group.negotiator.report_fault(fault);
  act_unless_explained(*group.info, [text = fault.message](Negotiator& negotiator) {
    negotiator.report_fault({ErrorCode::backend, text});
  });
}

void Losses::act_unless_explained(const GroupInfo& group, std::function<void(Negotiator&)> act) {
  noticed_.push_back({std::nullopt, [this, key = group.key(), act = std::move(act)] {
                        GroupState* const known = groups_.find(key);
                        if (known && !known->negotiator.broken()) act(known->negotiator);
                      }});
}

void Losses::look(Time now, bool leaving) {
  while (auto loss = control_.take_loss()) {
    bool leaves = leaving;
    groups_.each([&](const GroupState& group) { leaves |= group.negotiator.left().contains(loss->rank); });
    const auto wait = leaves ? leaving_takes_within : ControlChannel::word_comes_within;
    notice({loss->rank, loss->text + "; see what it printed"}, now + wait);
  }
  for (std::size_t i = 0; i < noticed_.size();) {
    auto& acts_at = noticed_[i].acts_at;
    if (!acts_at) acts_at = now + ControlChannel::word_comes_within;
    if (*acts_at > now) {
      ++i;
      continue;
    }
    const auto act = std::move(noticed_[i].act);
    noticed_.erase(noticed_.begin() + static_cast<std::ptrdiff_t>(i));
    const bool has_left = !leaving && groups_.world().negotiator.all_left();
    if (!has_left) act();
  }
}

Losses::Time Losses::next() const {
  Time next = Time::max();
  // At once is a time that has passed, but not the least there is: callers take the difference to now.
  for (const Noticed& one : noticed_) next = std::min(next, one.acts_at.value_or(Time()));
  return next;
}

/// All are to know: not everybody has met the rank, and whoever has not would wait for it.
void Losses::notice(const Gone& gone, Time acts_at) {
  if (!gone_.try_emplace(gone.rank, gone.text).second) return;
  groups_.world().negotiator.tell(gone);
  noticed_.push_back({acts_at, [this, rank = gone.rank] { fail_groups_of(rank); }});
}

std::optional<Failure> Losses::failure_of(const GroupInfo& group, bool acted_on) const {
  const auto found = std::ranges::find_if(
      group.ranks, [&](int rank) { return acted_on ? acted_on_.contains(rank) : gone_.contains(rank); });
  if (found == group.ranks.end()) return std::nullopt;
  return Failure{ErrorCode::aborted, fmt::format("group {}: {}", group.name, gone_.at(*found))};
}

void Losses::fail_groups_of(int rank) {
  acted_on_.insert(rank);
  lost_ = std::max(lost_.load(), acted_on_.size());
  for (auto& [key, group] : groups_.all()) {
    const bool concerned = std::ranges::find(group->info->ranks, rank) != group->info->ranks.end();
    if (!concerned) continue;
    group->negotiator.tell({rank, gone_.at(rank)});  // for those who hear of it here alone
    if (!group->negotiator.broken()) group->negotiator.cut_off(*failure_of(*group->info));
  }
}

void Losses::leave() noexcept {
  if (!groups_.world().negotiator.all_left()) lost_ = gone_.size();
}

}  // namespace kolo
