#include "runtime/negotiation/monitored_barrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kolo {

bool MonitoredBarrier::wait(const SubmissionPtr& submission) {
  if (failed_.contains(submission->request.name)) return false;
  waiting_[submission->request.name] = submission;
  return true;
}

std::optional<Failure> MonitoredBarrier::failure_of(const std::string& name) const {
  const auto found = failed_.find(name);
  return found == failed_.end() ? std::nullopt : std::optional(found->second);
}

bool MonitoredBarrier::all_here(const RankSet& came) const {
  return std::all_of(group_->ranks.begin(), group_->ranks.end(),
                     [&](int rank) { return came.contains(rank) || joined_.contains(rank); });
}

std::optional<BarrierDone> MonitoredBarrier::came(const BarrierArrived& record) {
  if (failed_.contains(record.name)) return std::nullopt;  // they have the error
  RankSet& here = came_[record.name];
  here.add(record.ranks);
  if (!all_here(here)) return std::nullopt;
  came_.erase(record.name);
  return BarrierDone{record.name, std::nullopt};
}

std::optional<BarrierDone> MonitoredBarrier::overdue(const BarrierTimeout& record) {
  const auto found = came_.find(record.name);
  if (found == came_.end()) return std::nullopt;  // decided meanwhile
  RankSet missing;
  for (int rank : group_->ranks) {
    if (!found->second.contains(rank) && !joined_.contains(rank)) missing.add(rank);
  }
  const std::string text =
      fmt::format("{} of group {}: {} did not come within {} s (rank {} waited that long; here: {}); see what they do",
                  to_string(OpKind::monitored_barrier), group_->name, to_string(missing), record.seconds, record.rank,
                  to_string(found->second));
  came_.erase(found);
  return BarrierDone{record.name, Failure{ErrorCode::stalled, text}};
}

std::vector<BarrierDone> MonitoredBarrier::joined(const RankSet& ranks) {
  joined_ = ranks;
  std::vector<BarrierDone> released;
  for (const auto& [name, here] : came_) {
    if (all_here(here)) released.push_back({name, std::nullopt});
  }
  for (const BarrierDone& record : released) came_.erase(record.name);
  return released;
}

SubmissionPtr MonitoredBarrier::released(const BarrierDone& record) {
  if (record.failure) failed_[record.name] = *record.failure;
  const auto found = waiting_.find(record.name);
  if (found == waiting_.end()) return nullptr;
  SubmissionPtr submission = std::move(found->second);
  waiting_.erase(found);
  return submission;
}

std::vector<SubmissionPtr> MonitoredBarrier::take_all() {
  std::vector<SubmissionPtr> taken;
  for (auto& [name, submission] : waiting_) taken.push_back(std::move(submission));
  waiting_.clear();
  return taken;
}

}  // namespace kolo
