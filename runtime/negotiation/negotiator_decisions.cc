#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/negotiation/mismatch.h"
#include "runtime/negotiation/negotiator.h"
#include "runtime/operation/block_sizes.h"

// How what is complete becomes a decision, at the root; elsewhere it goes on to the parent.

namespace kolo {

/// Turns what became complete into decisions (at the root) or announcements to the parent, until nothing is left: a
/// decision can complete something else.
void Negotiator::decide() {
  join_when_ready();
  if (!position_.root()) {
    pass_on();
    return;
  }
  for (;;) {
    if (over()) return;
    const auto change = learner_.propose(plan_);  // first: what gets a place in the plan need not run alone
    if (change) down(*change);
    ReadyTable::News news = table_.take();
    decide(news.ready);
    for (Announcement& announcement : news.announced) {
      const bool rejected = announcement.variants.size() > 1 || announcement.variants.front().failure;
      if (!rejected && learner_.in_open_run(announcement.name) &&
          moves_data(announcement.variants.front().signature.kind)) {
        std::string name = announcement.name;
        held_.insert_or_assign(std::move(name), std::move(announcement));
      } else {
        decide(announcement);
      }
    }
    for (const SplitBucket& cut : news.cuts) up(0, cut);
    decide_held();
    join_when_ready();
    if (!change && table_.quiet()) return;
  }
}

bool Negotiator::has_news() const {
  return !table_.quiet() || learner_.run_ended() || !held_.empty() || !joining_.empty() || !to_parent_.empty() ||
         std::ranges::any_of(to_child_, [](const Writer& child) { return !child.empty(); });
}

/// What became complete in this position's subtree, to the parent.
void Negotiator::pass_on() {
  const ReadyTable::News news = table_.take();
  if (over()) return;
  for (const Ready& record : news.ready) encode(to_parent_, UpRecord(record));
  for (const Announcement& announcement : news.announced) encode(to_parent_, UpRecord(announcement));
  for (const SplitBucket& cut : news.cuts) encode(to_parent_, UpRecord(cut));
}

/// Complete buckets run, but for those with a member that cannot; that is rejected, and the others are announced anew.
void Negotiator::decide(const std::vector<Ready>& ready) {
  Run run;
  std::vector<Reject> rejected;
  for (const Ready& record : ready) {
    const auto* members = plan_.members(record.bucket);
    if (!members) continue;  // retired meanwhile: announced anew, by all
    const auto before = rejected.size();
    for (TensorNumber number : *members) {
      const auto failure = unfit(number, record.sizes);
      if (failure) rejected.push_back({plan_.row(number).name, *failure});
    }
    if (rejected.size() > before) continue;
    run.buckets.push_back(record.bucket);
    run.sizes.insert(run.sizes.end(), record.sizes.begin(), record.sizes.end());
  }
  if (!run.buckets.empty()) down(run);
  for (const Reject& record : rejected) down(record);
}

void Negotiator::decide(const Announcement& announcement) {
  wanted_.erase(announcement.name);
  if (announcement.variants.size() > 1 || announcement.variants.front().failure) {
    down(Reject{announcement.name, explain_rejection(announcement, group_->name)});
    return;
  }
  const Signature& signature = announcement.variants.front().signature;
  auto number = plan_.find(announcement.name, signature);
  if (!number) {
    down(Define{announcement.name, signature});
    number = plan_.find(announcement.name, signature);
    for (TensorNumber namesake : plan_.numbers(announcement.name)) {  // ambiguous from now on: see PlanCache::Row
      up(0, SplitBucket{plan_.row(namesake).bucket, {namesake}});
    }
  }
  Ready complete{plan_.row(*number).bucket, announcement.sizes};
  for (SizesOfRanks& told : complete.sizes) told.tensor = *number;
  decide(std::vector{complete});
}

/// What was held back while the program's run was open, and did not get a place in the plan when it ended.
void Negotiator::decide_held() {
  if (held_.empty() || std::exchange(runs_looked_at_, learner_.runs()) == learner_.runs()) return;
  for (auto next = held_.begin(); next != held_.end();) {
    if (learner_.in_open_run(next->first)) {
      ++next;
      continue;
    }
    const Announcement announcement = std::move(next->second);
    next = held_.erase(next);
    decide(announcement);
  }
}

/// Why an operation cannot run although all have announced it alike.
std::optional<Failure> Negotiator::unfit(TensorNumber number, const std::vector<SizesOfRanks>& told) const {
  const PlanCache::Row& tensor = plan_.row(number);
  auto failure = check_joined(tensor.signature, *group_, joined_.ranks());
  if (!failure && has_rows(tensor.signature.kind)) {
    const auto sizes = sizes_by_rank(number, told);
    const auto away = absent();
    failure = check_sizes({tensor.signature.kind, sizes, away}, *group_);
  }
  if (failure)
    failure->message =
        fmt::format("{}: {}", describe(tensor.signature.kind, tensor.name, group_->name), failure->message);
  return failure;
}

}  // namespace kolo
