#include "runtime/negotiation/root.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "runtime/negotiation/mismatch.h"
#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {
namespace {

/// The higher ones first, else in the order in which they have become ready.
template <class T, class PriorityOf>
void by_priority(std::vector<T>& all, PriorityOf priority_of) {
  if (!std::ranges::is_sorted(all, std::greater{}, priority_of))
    std::ranges::stable_sort(all, std::greater{}, priority_of);
}

std::int32_t priority_of(const Announcement& announcement) {
  return announcement.variants.front().signature.priority;
}

}  // namespace

bool Root::decide() {
  bool more = forget({in_conflict(), true});                             // before what is complete since
  while (const auto change = layouts_.propose(plan_)) decide_(*change);  // all, before any that they may move runs
  const auto change = learner_.propose(plan_);  // before what is complete: it need not run alone
  if (change) decide_(*change);
  ReadyTable::News& news = table_.take();
  by_priority(news.ready, [&](const Ready& record) {
    const auto* members = plan_.members(record.bucket);
    return members && !members->empty() ? plan_.row(members->front()).signature.priority : 0;
  });
  by_priority(news.announced, priority_of);
  decide(news.ready);
  for (Announcement& announcement : news.announced) {
    const auto& first = announcement.variants.front();
    const bool rejected = announcement.variants.size() > 1 || first.failure;
    if (!rejected && learner_.in_open_run(announcement.name) && moves_data(first.signature.kind)) {
      std::string name = announcement.name;
      held_.insert_or_assign(std::move(name), std::move(announcement));
    } else {
      decide(announcement);
    }
  }
  decide_held();
  more |= change.has_value();
  if (census_.has_news()) more |= decide_overdue();
  if (recency_.crowded(plan_)) more |= forget({recency_.excess(plan_, table_)});
  return more || !conflicts_.empty();
}

bool Root::decide_overdue() {
  const auto decisions = census_.take();
  for (const DownMessage& message : decisions) decide_(message);
  return !decisions.empty();
}

std::vector<TensorNumber> Root::in_conflict() {
  std::vector<TensorNumber> numbers;
  for (const std::string& name : std::exchange(conflicts_, {})) {
    for (TensorNumber number : plan_.numbers(name)) numbers.push_back(number);
  }
  return numbers;
}

bool Root::forget(const Forget& message) {
  if (message.tensors.empty()) return false;
  decide_(message);
  learner_.forget();
  layouts_.forget();
  return true;
}

/// What is held back for its run need not wait any longer.
void Root::overdue(const Overdue& message) {
  learner_.waited();
  if (const auto question = census_.overdue(message)) decide_(*question);
}

/// Complete buckets run, but for those with a member that cannot; that is rejected, and the others are announced anew.
void Root::decide(const std::vector<Ready>& ready) {
  Run run;
  std::vector<std::tuple<std::string, OpKind, Failure>> rejected;
  for (const Ready& record : ready) {
    const auto* members = plan_.members(record.bucket);
    if (!members) continue;  // retired meanwhile: announced anew, by all
    const auto before = rejected.size();
    for (TensorNumber number : *members) {
      if (const auto failure = unfit(number, record.sizes)) {
        const PlanCache::Row& row = plan_.row(number);
        rejected.emplace_back(row.name, row.signature.kind, *failure);
      }
    }
    if (rejected.size() > before) continue;
    for (TensorNumber number : *members) {
      if (!census_.empty()) census_.close(plan_.row(number).name);
      recency_.used(number);
    }
    run.buckets.push_back(record.bucket);
    run.sizes.insert(run.sizes.end(), record.sizes.begin(), record.sizes.end());
  }
  if (!run.buckets.empty()) decide_(std::move(run));
  for (const auto& [name, kind, failure] : rejected) reject(name, kind, failure);
}

/// A group that cannot be opened is of no more use.
void Root::reject(const std::string& name, OpKind kind, Failure failure) {
  // calls that have no name would go on out of step
  const bool ends_group =
      kind == OpKind::open_group || (membership_.group().negotiated && failure.code == ErrorCode::mismatch);
  ends_group ? decide_(GroupFailed{std::move(failure)}) : decide_(Reject{name, std::move(failure)});
}

void Root::decide(const Announcement& announcement) {
  wanted_.erase(announcement.name);
  if (announcement.variants.size() > 1 || announcement.variants.front().failure) {
    auto failure = explain_rejection(announcement, membership_.group().name);
    return reject(announcement.name, announcement.variants.front().signature.kind, std::move(failure));
  }
  const Signature& signature = announcement.variants.front().signature;
  decide_(Define{announcement.name, signature});
  const TensorNumber number = *plan_.find(announcement.name, signature);
  for (TensorNumber namesake : plan_.numbers(announcement.name)) {  // they are not fused: see PlanCache::Row
    split({plan_.row(namesake).bucket, {namesake}});
  }
  Ready complete{plan_.row(number).bucket, announcement.sizes};
  for (SizesOfRanks& sizes : complete.sizes) sizes.tensor = number;
  decide(std::vector{complete});
}

/// What was held back while the program's run was open, and did not get a place in the plan when it ended.
void Root::decide_held() {
  if (held_.empty() || std::exchange(runs_looked_at_, learner_.runs()) == learner_.runs()) return;
  std::vector<Announcement> released;
  std::erase_if(held_, [&](auto& entry) {
    const bool held = learner_.in_open_run(entry.first);
    if (!held) released.push_back(std::move(entry.second));
    return !held;
  });
  by_priority(released, priority_of);
  for (const Announcement& announcement : released) decide(announcement);
}

/// Why an operation cannot run although all have announced the same.
std::optional<Failure> Root::unfit(TensorNumber number, const std::vector<SizesOfRanks>& news) const {
  const PlanCache::Row& tensor = plan_.row(number);
  const GroupInfo& group = membership_.group();
  const SizesOfRanks* objection = nullptr;  // of the lowest rank
  for (const SizesOfRanks& sizes : news) {
    if (sizes.failure && sizes.tensor == number && (!objection || sizes.ranks < objection->ranks)) objection = &sizes;
  }
  if (objection)
    return explain_rejection({tensor.name, {{tensor.signature, objection->failure, objection->ranks}}}, group.name);
  auto failure = membership_.unfit(tensor.signature);
  if (!failure && has_rows(tensor.signature.kind)) {
    const auto absent = membership_.absent();
    if (plan_.as_before(number, news, absent)) return std::nullopt;
    const auto sizes = plan_.sizes_by_rank(number, group.ranks, news, absent);
    failure = check_sizes({tensor.signature.kind, sizes, absent}, group);
  }
  if (failure)
    failure->message =
        fmt::format("{}: {}", describe(tensor.signature.kind, tensor.name, group.name), failure->message);
  return failure;
}

/// What is decided since, nobody would take out again.
void Root::waiting(const Waiting& message) {
  if (membership_.group().negotiated) return;  // there nothing is held back
  if (!plan_.voids(message.name, message.known)) wanted_.insert(message.name);
}

/// Awaited is sent once for each time that all who wait have said so.
void Root::awaited(const Awaited& message) {
  std::erase_if(askers_, [&](const auto& entry) { return !plan_.members(entry.first); });
  if (!plan_.members(message.bucket)) return;
  std::set<int>& askers = askers_[message.bucket];
  const bool first = askers.empty();
  const bool again = !askers.insert(message.rank).second;
  if (again) askers = {message.rank};
  if (first || again) decide_(message);
}

void Root::split(const SplitBucket& message) {
  const auto* members = plan_.members(message.bucket);
  if (!members) return;  // split already: who asked looks again when it learns so
  if (message.standstill && layout_matters(plan_.row(members->front()).signature)) {
    Replan apart{};  // not as it happens to stand: what runs alone lies as it does anywhere
    for (TensorNumber number : *members) apart.buckets.push_back({number});
    layouts_.keep_apart(*members);
    return decide_(apart);
  }
  Replan split{{{}, {}}};
  for (TensorNumber number : *members) {
    const bool wanted = std::ranges::find(message.members, number) != message.members.end();
    split.buckets[wanted ? 0 : 1].push_back(number);
  }
  if (split.buckets[0].empty() || split.buckets[1].empty()) return;
  if (message.standstill) learner_.keep_apart(*members);
  decide_(split);
}

bool Root::holds_up_others() const {
  return std::ranges::any_of(wanted_, [&](const std::string& name) { return held_.contains(name); });
}

void Root::release(const std::string& name) {
  held_.erase(name);
  wanted_.erase(name);
  census_.close(name);
}

}  // namespace kolo
