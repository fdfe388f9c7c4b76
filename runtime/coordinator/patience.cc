#include "runtime/coordinator/patience.h"

#include <algorithm>

#include "runtime/coordinator/groups.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds often = 50us, asleep = 1ms, lately = 100ms, seldom = 1s;

}  // namespace

bool GracePeriod::ended(bool cause, std::size_t length, Time now) {
  if (!cause) {
    since_.reset();
    return false;
  }
  if (!since_ || length != length_) since_ = now;
  length_ = length;
  if (now - *since_ < limit_) return false;
  since_.reset();
  return true;
}

void TrailingProgress::begin(Time now) {
  began_ = now;
  interval_ = often;
  next_ = now + interval_;
}

bool TrailingProgress::due(Time now) {
  if (now < next_) return false;
  interval_ = std::clamp<std::chrono::nanoseconds>((now - began_) / 4, often, seldom);
  next_ = now + interval_;
  return true;
}

bool TrailingProgress::has_begun_lately(Time now) const {
  return next_ != Time::max() && now - began_ < lately;
}

TrailingProgress::Time TrailingProgress::next() const {
  if (next_ == Time::max() || interval_ == seldom) return Time::max();
  return std::max(next_, began_ + asleep);
}

bool Patience::look(std::size_t submissions, Time now) {
  bool ended = false;
  for (auto& [key, group] : groups_.at_work()) {
    Negotiator& negotiator = group->negotiator;
    if (!group->patience.counting() && negotiator.at_rest()) continue;
    if (group->patience.run.ended(negotiator.holds_up_others(), negotiator.length_of_run(), now)) {
      negotiator.end_run();
      ended = true;
    }
    if (group->patience.wait.ended(negotiator.program_waits(), negotiator.agreements(), now)) {
      negotiator.ask_for_parts();
      ended = true;
    }
    if (group->patience.part.ended(negotiator.keeps_parts(), submissions, now)) {
      negotiator.give_parts();
      ended = true;
    }
  }
  if (!standstill_.ended(stands_still(), submissions, now)) return ended;
  for (auto& [key, group] : groups_.at_work()) group->negotiator.flush_all();
  return true;
}

/// Also one that the next look begins: decisions came after the last.
bool Patience::counting() const {
  return standstill_.counting() || stands_still() || groups_.any_at_work([](const GroupState& group) {
    return group.patience.run.counting() || group.negotiator.holds_up_others();
  });
}

bool Patience::stands_still() const {
  bool program_waits = false, buckets_wait = false;
  for (const auto& [key, group] : groups_.at_work()) {
    program_waits |= group->negotiator.program_waits() || (group->negotiator.in_order() && group->executor.busy());
    buckets_wait |= group->negotiator.waits_for_program();
  }
  return program_waits && buckets_wait;
}

}  // namespace kolo
