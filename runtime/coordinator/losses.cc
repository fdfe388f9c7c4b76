#include "runtime/coordinator/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto leaving_takes_within = 2s;  // until all know that all do

}  // namespace

void Losses::unexplained(GroupState& group, const Failure& failure) {
  group.executor.halt();
  noticed_.push_back({std::nullopt, [this, key = group.info->key(), failure] {
                        GroupState* const known = groups_.find(key);
                        if (known && !known->negotiator.broken()) known->negotiator.fail_group(failure);
                      }});
}

void Losses::look(Time now, bool leaving) {
  while (auto loss = control_.take_loss()) {
    const auto wait = leaving ? leaving_takes_within : ControlChannel::word_comes_within;
    noticed_.push_back({now + wait, [this, loss = std::move(*loss)] { fail_groups_of(loss); }});
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
  for (const Noticed& one : noticed_) next = std::min(next, one.acts_at.value_or(Time::min()));
  return next;
}

void Losses::fail_groups_of(const ControlChannel::Loss& loss) {
  for (auto& [key, group] : groups_.all()) {
    const bool concerned = std::ranges::find(group->info->ranks, loss.rank) != group->info->ranks.end();
    if (!concerned || group->negotiator.broken()) continue;
    group->negotiator.cut_off(
        {ErrorCode::aborted, fmt::format("group {}: {}; see what it printed", group->info->name, loss.text)});
  }
}

}  // namespace kolo
