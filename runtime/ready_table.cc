#include "runtime/ready_table.h"

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

void merge(Announcement& into, const Announcement::Variant& variant) {
  for (auto& known : into.variants) {
    if (known.signature == variant.signature && known.failure == variant.failure) {
      known.ranks.add(variant.ranks);
      return;
    }
  }
  into.variants.push_back(variant);
}

}  // namespace

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
}

void ReadyTable::ready(int child, BucketId bucket, const PlanCache& plan) {
  const auto* members = plan.members(bucket);
  if (!members) return;  // retired while the announcement was on its way: the child announces again
  Arrivals& arrivals = buckets_[bucket];
  if (!mark(arrivals, child)) return;
  if (arrivals.count == children()) {
    arrivals.passed_on = true;
    news_.ready.push_back(bucket);
    close_rows(*members, plan);
    return;
  }
  for (TensorNumber number : *members) {
    const PlanCache::Row& tensor = plan.row(number);
    if (tensor.ambiguous && members->size() == 1) {
      Row& row = rows_[tensor.name];  // a meeting place for announcements of its other signatures
      row.announcement.name = tensor.name;
      row.arrivals.from.resize(subtrees_.size());
    }
    if (rows_.empty()) return;
    if (const auto row = rows_.find(tensor.name); row != rows_.end()) check_row(row->second, plan);
  }
}

void ReadyTable::ran(BucketId bucket, const PlanCache& plan) {
  buckets_.erase(bucket);
  close_rows(*plan.members(bucket), plan);
}

/// Every child means the same signature: there is nothing left to meet for.
void ReadyTable::close_rows(const std::vector<TensorNumber>& members, const PlanCache& plan) {
  for (TensorNumber number : members) {
    if (plan.row(number).ambiguous) rows_.erase(plan.row(number).name);
  }
}

void ReadyTable::announce(int child, const Announcement& announcement, const PlanCache& plan) {
  Row& row = rows_[announcement.name];
  row.announcement.name = announcement.name;
  if (!mark(row.arrivals, child)) return;
  for (const auto& variant : announcement.variants) merge(row.announcement, variant);
  check_row(row, plan);
}

/// A row is complete when every child has announced the name: in full, or by a bucket that holds nothing else.
void ReadyTable::check_row(Row& row, const PlanCache& plan) {
  if (row.arrivals.passed_on) return;
  std::vector<bool> from = row.arrivals.from;
  Announcement merged = row.announcement;
  std::vector<Arrivals*> counted;
  for (TensorNumber number : plan.numbers(row.announcement.name)) {
    const BucketId bucket = plan.row(number).bucket;
    if (plan.members(bucket)->size() > 1) {
      if (std::find(row.cuts_asked.begin(), row.cuts_asked.end(), bucket) != row.cuts_asked.end()) continue;
      row.cuts_asked.push_back(bucket);
      news_.cuts.push_back({bucket, {number}});
      continue;
    }
    const auto found = buckets_.find(bucket);
    if (found == buckets_.end() || found->second.count == 0) continue;
    Arrivals& arrivals = found->second;
    counted.push_back(&arrivals);
    for (std::size_t child = 0; child < from.size(); ++child) {
      if (!arrivals.from[child]) continue;
      from[child] = true;
      merge(merged, {plan.row(number).signature, std::nullopt, subtrees_[child]});
    }
  }
  if (std::find(from.begin(), from.end(), false) != from.end()) return;
  row.arrivals.passed_on = true;
  for (Arrivals* arrivals : counted) {
    arrivals->passed_on = true;
    arrivals->merged_into = row.announcement.name;
  }
  news_.announced.push_back(std::move(merged));
}

ReadyTable::Retraction ReadyTable::retract(int child, const Retract& what, const PlanCache& plan) {
  if (what.bucket) {
    const auto found = buckets_.find(*what.bucket);
    if (!plan.members(*what.bucket) || found == buckets_.end()) return Retraction::ignored;
    Arrivals& arrivals = found->second;
    if (arrivals.count == 0 || !arrivals.from[static_cast<std::size_t>(child)]) return Retraction::ignored;
    if (arrivals.passed_on) {
      arrivals.retractions.emplace_back(child, what);
      return Retraction::passed_on;
    }
  } else {
    const auto found = rows_.find(what.name);
    if (found == rows_.end()) return Retraction::ignored;
    Arrivals& arrivals = found->second.arrivals;
    if (!arrivals.from[static_cast<std::size_t>(child)]) return Retraction::ignored;
    if (arrivals.passed_on) {
      arrivals.retractions.emplace_back(child, what);
      return Retraction::passed_on;
    }
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
    if (found->second.count == 0) buckets_.erase(found);
    return;
  }
  const auto found = rows_.find(what.name);
  if (found == rows_.end()) return;
  Row& row = found->second;
  clear(row.arrivals, child);
  for (auto& variant : row.announcement.variants) variant.ranks.remove(subtrees_[static_cast<std::size_t>(child)]);
  std::erase_if(row.announcement.variants, [](const auto& variant) { return variant.ranks.empty(); });
  if (row.arrivals.count == 0) rows_.erase(found);
}

std::vector<std::pair<int, Retract>> ReadyTable::retracted(const Retract& what, const PlanCache& plan) {
  std::vector<std::pair<int, Retract>> answers;
  const auto reopen = [&](Arrivals& arrivals) {
    arrivals.passed_on = false;
    arrivals.merged_into.clear();
    for (auto& retraction : arrivals.retractions) answers.push_back(std::move(retraction));
    arrivals.retractions.clear();
  };
  if (what.bucket) {
    if (const auto found = buckets_.find(*what.bucket); found != buckets_.end()) reopen(found->second);
  } else {
    if (const auto found = rows_.find(what.name); found != rows_.end()) reopen(found->second.arrivals);
    for (TensorNumber number : plan.numbers(what.name)) {  // buckets that were passed on as part of that row
      const auto found = buckets_.find(plan.row(number).bucket);
      if (found != buckets_.end() && found->second.merged_into == what.name) reopen(found->second);
    }
  }
  for (const auto& [child, retraction] : answers) forget(child, retraction);
  return answers;
}

void ReadyTable::retired(const std::vector<BucketId>& buckets, const PlanCache& plan) {
  for (BucketId bucket : buckets) buckets_.erase(bucket);
  for (auto& [name, row] : rows_) check_row(row, plan);
}

}  // namespace kolo
