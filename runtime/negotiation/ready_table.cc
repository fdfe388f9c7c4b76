#include "runtime/negotiation/ready_table.h"

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

constexpr std::size_t most_variants = 16;

void merge(Announcement& into, const Announcement::Variant& variant) {
  for (auto& known : into.variants) {
    if (known.signature == variant.signature && known.failure == variant.failure) {
      known.ranks.add(variant.ranks);
      return;
    }
  }
  if (into.variants.size() < most_variants) return into.variants.push_back(variant);
  into.others.add(variant.ranks);
}

bool says(const Announcement& announcement, const Signature& signature) {
  return std::any_of(announcement.variants.begin(), announcement.variants.end(),
                     [&](const auto& variant) { return !variant.failure && variant.signature == signature; });
}

}  // namespace

ReadyTable::Row& ReadyTable::row(const std::string& name) {
  Row& row = rows_[name];
  row.name = name;
  row.arrivals.from.resize(subtrees_.size());
  row.announced.resize(subtrees_.size());
  return row;
}

bool ReadyTable::mark(Arrivals& arrivals, int child) {
  arrivals.from.resize(subtrees_.size());
  if (arrivals.from[static_cast<std::size_t>(child)]) return false;
  arrivals.from[static_cast<std::size_t>(child)] = true;
  ++arrivals.count;
  return true;
}

void ReadyTable::clear(Arrivals& arrivals, int child) {
  arrivals.from.resize(subtrees_.size());
  if (!arrivals.from[static_cast<std::size_t>(child)]) return;
  arrivals.from[static_cast<std::size_t>(child)] = false;
  --arrivals.count;
  const RankSet& ranks = subtrees_[static_cast<std::size_t>(child)];
  std::erase_if(arrivals.sizes, [&](SizesOfRanks& sizes) {
    sizes.ranks.remove(ranks);
    return sizes.ranks.empty();
  });
}

/// Whether every child that counts (in a vote all do) is in `from`, and at least one is.
bool ReadyTable::everybody(const std::vector<bool>& from, bool vote) const {
  bool any = false;
  for (std::size_t child = 0; child < from.size(); ++child) {
    if (!from[child] && (vote || !excused_[child])) return false;
    any |= from[child];
  }
  return any;
}

void ReadyTable::ready(int child, const Ready& record, const PlanCache& plan) {
  const auto* members = plan.members(record.bucket);
  if (!members) return;  // retired while the announcement was on its way: the child announces again
  Arrivals& arrivals = buckets_[record.bucket];
  if (!mark(arrivals, child)) return;
  arrivals.sizes.insert(arrivals.sizes.end(), record.sizes.begin(), record.sizes.end());
  check_bucket(record.bucket, arrivals, plan);
}

void ReadyTable::check_bucket(BucketId bucket, Arrivals& arrivals, const PlanCache& plan) {
  if (arrivals.passed_on) return;
  const auto& members = *plan.members(bucket);
  if (everybody(arrivals.from, arrivals.vote)) {
    arrivals.passed_on = true;
    news_.ready.push_back({bucket, arrivals.sizes});
    close_rows(members, plan);
    return;
  }
  for (TensorNumber number : members) {
    const PlanCache::Row& tensor = plan.row(number);
    if (tensor.ambiguous && members.size() == 1)
      row(tensor.name);  // a meeting place for announcements of its other signatures
    if (rows_.empty()) return;
    if (const auto found = rows_.find(tensor.name); found != rows_.end()) check_row(found->second, plan);
  }
}

void ReadyTable::check_buckets(const PlanCache& plan) {
  std::vector<BucketId> waiting;  // a complete one may close rows, an incomplete one open some
  for (const auto& [bucket, arrivals] : buckets_) waiting.push_back(bucket);
  std::sort(waiting.begin(), waiting.end());
  for (BucketId bucket : waiting) check_bucket(bucket, buckets_.at(bucket), plan);
}

bool ReadyTable::run(BucketId bucket, bool may, const PlanCache& plan) {
  const bool runs = may || votes(bucket);
  buckets_.erase(bucket);
  if (!runs) buckets_[bucket].vote = true;
  close_rows(*plan.members(bucket), plan);
  return runs;
}

/// Every child means the same signature: there is nothing left to meet for.
void ReadyTable::close_rows(const std::vector<TensorNumber>& members, const PlanCache& plan) {
  for (TensorNumber number : members) {
    if (plan.row(number).ambiguous) rows_.erase(plan.row(number).name);
  }
}

void ReadyTable::announce(int child, const Announcement& announcement, const PlanCache& plan) {
  if (plan.voids(announcement)) return;
  Row& named = row(announcement.name);
  if (!mark(named.arrivals, child)) return;
  named.announced[static_cast<std::size_t>(child)] = announcement;
  check_row(named, plan);
}

/// A row is complete when every child has announced the name: in full, or by a bucket that holds nothing else.
void ReadyTable::check_row(Row& row, const PlanCache& plan) {
  if (row.arrivals.passed_on) return;
  std::vector<bool> from = row.arrivals.from;
  std::vector<std::pair<TensorNumber, Arrivals*>> counted;
  bool vote = false;
  for (TensorNumber number : plan.numbers(row.name)) {
    const BucketId bucket = plan.row(number).bucket;
    if (plan.members(bucket)->size() > 1) {
      if (std::find(row.splits_asked.begin(), row.splits_asked.end(), bucket) != row.splits_asked.end()) continue;
      row.splits_asked.push_back(bucket);
      news_.splits.push_back({bucket, {number}});
      continue;
    }
    const auto found = buckets_.find(bucket);
    if (found == buckets_.end()) continue;
    vote |= found->second.vote;
    if (found->second.count == 0) continue;
    counted.emplace_back(number, &found->second);
    for (std::size_t child = 0; child < from.size(); ++child) {
      if (found->second.from[child]) from[child] = true;
    }
  }
  if (!everybody(from, vote)) return;
  Announcement merged{.name = row.name, .variants = {}, .sizes = {}, .known = plan.epoch()};
  for (const Announcement& announcement : row.announced) {
    for (const auto& variant : announcement.variants) merge(merged, variant);
    merged.others.add(announcement.others);
    merged.sizes.insert(merged.sizes.end(), announcement.sizes.begin(), announcement.sizes.end());
  }
  row.arrivals.passed_on = true;
  for (auto& [number, arrivals] : counted) {
    arrivals->passed_on = true;
    arrivals->merged_into = row.name;
    count_bucket(*arrivals, number, plan, merged);
  }
  news_.announced.push_back(std::move(merged));
}

/// Says in full what children have announced by number.
void ReadyTable::count_bucket(const Arrivals& arrivals, TensorNumber number, const PlanCache& plan,
                              Announcement& into) const {
  const PlanCache::Row& tensor = plan.row(number);
  RankSet as_before;  // with the sizes of the last run
  for (std::size_t child = 0; child < subtrees_.size(); ++child) {
    if (!arrivals.from[child]) continue;
    RankSet ranks = subtrees_[child];
    ranks.remove(joined_);
    merge(into, {tensor.signature, std::nullopt, ranks});
    as_before.add(ranks);
  }
  if (!has_rows(tensor.signature.kind)) return;
  for (SizesOfRanks sizes : arrivals.sizes) {
    as_before.remove(sizes.ranks);
    sizes.tensor = 0;
    into.sizes.push_back(std::move(sizes));
  }
  for (const SizesOfRanks& last : plan.sizes_of(number, as_before)) into.sizes.push_back(last);
}

ReadyTable::Retraction ReadyTable::retract(int child, const Retract& what, const PlanCache& plan) {
  Arrivals* arrivals = nullptr;
  if (what.bucket) {
    const auto found = buckets_.find(*what.bucket);
    if (plan.members(*what.bucket) && found != buckets_.end()) arrivals = &found->second;
  } else if (const auto found = rows_.find(what.name); found != rows_.end()) {
    arrivals = &found->second.arrivals;
  }
  if (!arrivals || arrivals->count == 0 || !arrivals->from[static_cast<std::size_t>(child)]) return Retraction::ignored;
  if (arrivals->passed_on) {
    arrivals->retractions.emplace_back(child, what);
    return Retraction::passed_on;
  }
  forget(child, what);
  return Retraction::done;
}

std::string ReadyTable::merged_into(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found == buckets_.end() ? std::string() : found->second.merged_into;
}

void ReadyTable::forget(int child, const Retract& what) {
  if (what.bucket) {
    const auto found = buckets_.find(*what.bucket);
    if (found == buckets_.end()) return;
    clear(found->second, child);
    if (found->second.count == 0 && !found->second.vote) buckets_.erase(found);
    return;
  }
  const auto found = rows_.find(what.name);
  if (found == rows_.end()) return;
  clear(found->second.arrivals, child);
  found->second.announced[static_cast<std::size_t>(child)] = {};
  if (found->second.arrivals.count == 0) rows_.erase(found);
}

/// What was passed on is so no longer: what children have asked to take back can be answered here.
void ReadyTable::reopen(Arrivals& arrivals, Answers& answers) {
  arrivals.passed_on = false;
  arrivals.merged_into.clear();
  for (auto& retraction : arrivals.retractions) answers.push_back(std::move(retraction));
  arrivals.retractions.clear();
}

ReadyTable::Answers ReadyTable::retracted(const Retract& what, const PlanCache& plan) {
  Answers answers;
  if (what.bucket) {
    if (const auto found = buckets_.find(*what.bucket); found != buckets_.end()) reopen(found->second, answers);
  } else {
    if (const auto found = rows_.find(what.name); found != rows_.end()) reopen(found->second.arrivals, answers);
    for (TensorNumber number : plan.numbers(what.name)) {  // buckets that were passed on as part of that row
      const auto found = buckets_.find(plan.row(number).bucket);
      if (found != buckets_.end() && found->second.merged_into == what.name) reopen(found->second, answers);
    }
  }
  for (const auto& [child, retraction] : answers) forget(child, retraction);
  return answers;
}

ReadyTable::Answers ReadyTable::defined(const std::string& name, const Signature& signature) {
  const auto found = rows_.find(name);
  if (found == rows_.end()) return {};
  Row& row = found->second;
  bool any = false;
  for (std::size_t child = 0; child < row.announced.size(); ++child) {
    if (!says(row.announced[child], signature)) continue;
    any = true;
    clear(row.arrivals, static_cast<int>(child));
    row.announced[child] = {};
    std::erase_if(row.arrivals.retractions, [&](const auto& asked) { return asked.first == static_cast<int>(child); });
  }
  if (!any) return {};
  forget_news(name);
  Answers answers;
  reopen(row.arrivals, answers);
  for (auto& [bucket, arrivals] : buckets_) {
    if (arrivals.merged_into == name) reopen(arrivals, answers);
  }
  if (row.arrivals.count == 0) rows_.erase(found);
  for (const auto& [child, retraction] : answers) forget(child, retraction);
  return answers;
}

ReadyTable::Answers ReadyTable::forgot(const PlanCache& plan) {
  rows_.clear();
  news_.announced.clear();
  Answers answers;
  for (auto& [bucket, arrivals] : buckets_) {
    if (!arrivals.merged_into.empty()) reopen(arrivals, answers);
  }
  for (const auto& [child, retraction] : answers) forget(child, retraction);
  check_buckets(plan);
  return answers;
}

void ReadyTable::rejected(const std::string& name) {
  rows_.erase(name);
  forget_news(name);
}

void ReadyTable::forget_news(const std::string& name) {
  std::erase_if(news_.announced, [&](const Announcement& announcement) { return announcement.name == name; });
}

void ReadyTable::joined(const RankSet& ranks, const PlanCache& plan) {
  joined_ = ranks;
  for (std::size_t child = 0; child < subtrees_.size(); ++child) {
    excused_[child] = ranks.contains(subtrees_[child]);
  }
  check_buckets(plan);
  for (auto& [name, row] : rows_) check_row(row, plan);
}

void ReadyTable::retired(const std::vector<BucketId>& buckets, const PlanCache& plan) {
  for (BucketId bucket : buckets) buckets_.erase(bucket);
  for (auto& [name, row] : rows_) check_row(row, plan);
}

}  // namespace kolo
