#include "runtime/negotiation/ready_table.h"

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

constexpr std::size_t most_variants = 16;

void merge(std::vector<Announcement::Variant>& into, RankSet& others, const Announcement::Variant& variant) {
  for (auto& known : into) {
    if (known.signature == variant.signature && known.failure == variant.failure) {
      known.ranks.add(variant.ranks);
      return;
    }
  }
  if (into.size() < most_variants) return into.push_back(variant);
  others.add(variant.ranks);
}

/// Equal failures are one, and very many are as few.
void merge(std::vector<SizesOfRanks>& into, const SizesOfRanks& sizes) {
  std::size_t failures = 0;
  const auto same = std::ranges::find_if(into, [&](const SizesOfRanks& known) {
    return sizes.failure && known.failure && known.tensor == sizes.tensor &&
           (known.failure == sizes.failure || ++failures == most_variants);
  });
  if (same == into.end()) return into.push_back(sizes);
  same->ranks.add(sizes.ranks);
}

template <class OfRanks>
void remove(std::vector<OfRanks>& from, const RankSet& ranks) {
  std::erase_if(from, [&](OfRanks& entry) {
    entry.ranks.remove(ranks);
    return entry.ranks.empty();
  });
}

}  // namespace

ReadyTable::Arrivals& ReadyTable::at(BucketId bucket) {
  const auto found = buckets_.find(bucket);
  if (found != buckets_.end()) return found->second;
  if (!spare_) return buckets_[bucket];
  Arrivals& arrivals = spare_.mapped();
  std::vector<bool> from = std::move(arrivals.from);
  from.clear();
  arrivals = {.from = std::move(from)};
  spare_.key() = bucket;
  return buckets_.insert(std::move(spare_)).position->second;
}

bool ReadyTable::mark(Arrivals& arrivals, int child) {
  arrivals.from.resize(subtrees_.size());
  if (arrivals.from[static_cast<std::size_t>(child)]) return false;
  arrivals.from[static_cast<std::size_t>(child)] = true;
  ++arrivals.count;
  return true;
}

/// Whether every child that counts (in a vote all do) has announced it, and at least one has.
bool ReadyTable::complete(const Arrivals& arrivals) const {
  for (std::size_t child = 0; child < arrivals.from.size(); ++child) {
    if (!arrivals.from[child] && (arrivals.vote || !excused_[child])) return false;
  }
  return arrivals.count > 0;
}

std::vector<Conflict> ReadyTable::ready(int child, const Ready& record, const PlanCache& plan) {
  const auto* members = plan.members(record.bucket);
  if (!members) return {};  // retired while the announcement was on its way: the child announces again
  Arrivals& arrivals = at(record.bucket);
  if (!mark(arrivals, child)) return {};
  for (const SizesOfRanks& sizes : record.sizes) merge(arrivals.sizes, sizes);
  check(record.bucket, arrivals);
  std::vector<Conflict> conflicts;
  if (names_.empty() && !plan.row(members->front()).ambiguous) return conflicts;
  for (TensorNumber number : *members) {
    const PlanCache::Row& tensor = plan.row(number);
    if ((tensor.ambiguous || names_.contains(tensor.name)) && in_conflict(tensor.name, plan))
      conflicts.push_back({tensor.name});
  }
  return conflicts;
}

std::vector<Conflict> ReadyTable::announce(int child, const Announcement& announcement, const PlanCache& plan) {
  const std::string& name = announcement.name;
  if (plan.voids(name, announcement.known)) return {};
  Arrivals& arrivals = names_[name];
  if (!mark(arrivals, child)) return {};
  for (const auto& variant : announcement.variants) merge(arrivals.variants, arrivals.others, variant);
  arrivals.others.add(announcement.others);
  arrivals.sizes.insert(arrivals.sizes.end(), announcement.sizes.begin(), announcement.sizes.end());
  check(name, arrivals);
  if (in_conflict(name, plan)) return {{name}};
  return {};
}

/// Whether children have announced the name in different ways.
bool ReadyTable::in_conflict(const std::string& name, const PlanCache& plan) const {
  int ways = names_.contains(name) ? 1 : 0;
  for (TensorNumber number : plan.numbers(name)) {
    const auto found = buckets_.find(plan.row(number).bucket);
    if (found != buckets_.end() && found->second.count > 0) ++ways;
  }
  return ways > 1;
}

void ReadyTable::check(BucketId bucket, Arrivals& arrivals) {
  if (arrivals.passed_on || !complete(arrivals)) return;
  arrivals.passed_on = true;
  news_.ready.push_back({bucket, arrivals.sizes});
}

void ReadyTable::check(const std::string& name, Arrivals& arrivals) {
  if (arrivals.passed_on || !complete(arrivals)) return;
  arrivals.passed_on = true;
  news_.announced.push_back(
      {.name = name, .variants = arrivals.variants, .sizes = arrivals.sizes, .others = arrivals.others});
}

bool ReadyTable::run(BucketId bucket, bool may) {
  const bool runs = may || votes(bucket);
  if (auto ran = buckets_.extract(bucket)) spare_ = std::move(ran);
  if (!runs) at(bucket).vote = true;
  return runs;
}

ReadyTable::News& ReadyTable::take() {
  taken_.ready.clear();
  taken_.announced.clear();
  std::swap(taken_, news_);
  return taken_;
}

ReadyTable::Arrivals* ReadyTable::find(const Retract& what) {
  if (what.bucket) {
    const auto found = buckets_.find(*what.bucket);
    return found == buckets_.end() ? nullptr : &found->second;
  }
  const auto found = names_.find(what.name);
  return found == names_.end() ? nullptr : &found->second;
}

ReadyTable::Retraction ReadyTable::retract(int child, const Retract& what) {
  Arrivals* const arrivals = find(what);
  if (!arrivals || arrivals->count == 0 || !arrivals->from[static_cast<std::size_t>(child)]) return Retraction::ignored;
  if (arrivals->passed_on) {
    arrivals->retractions.push_back(child);
    return Retraction::passed_on;
  }
  clear(what, child);
  return Retraction::done;
}

/// What was passed on is so no longer: what children have asked to take back can be answered here.
std::vector<int> ReadyTable::retracted(const Retract& what) {
  Arrivals* const arrivals = find(what);
  if (!arrivals) return {};
  arrivals->passed_on = false;
  std::vector<int> children = std::exchange(arrivals->retractions, {});
  for (int child : children) clear(what, child);
  return children;
}

void ReadyTable::clear(const Retract& what, int child) {
  Arrivals* const arrivals = find(what);
  if (!arrivals || arrivals->count == 0 || !arrivals->from[static_cast<std::size_t>(child)]) return;
  arrivals->from[static_cast<std::size_t>(child)] = false;
  --arrivals->count;
  const RankSet& ranks = subtrees_[static_cast<std::size_t>(child)];
  remove(arrivals->sizes, ranks);
  remove(arrivals->variants, ranks);
  arrivals->others.remove(ranks);
  if (arrivals->count > 0 || arrivals->vote) return;
  if (what.bucket) {
    buckets_.erase(*what.bucket);
  } else {
    names_.erase(what.name);
  }
}

void ReadyTable::voided(const std::string& name) {
  if (names_.erase(name) == 0) return;
  std::erase_if(news_.announced, [&](const Announcement& announcement) { return announcement.name == name; });
}

void ReadyTable::all_voided() {
  names_.clear();
  news_.announced.clear();
}

void ReadyTable::retired(const std::vector<BucketId>& buckets) {
  for (BucketId bucket : buckets) buckets_.erase(bucket);
}

void ReadyTable::joined(const RankSet& ranks) {
  for (std::size_t child = 0; child < subtrees_.size(); ++child) {
    excused_[child] = ranks.contains(subtrees_[child]);
  }
  for (auto& [bucket, arrivals] : buckets_) check(bucket, arrivals);
  for (auto& [name, arrivals] : names_) check(name, arrivals);
}

}  // namespace kolo
