#include "runtime/negotiation/plan_cache.h"

#include "runtime/operation/submission.h"

namespace kolo {

TensorNumber PlanCache::define(std::string name, const Signature& signature) {
  const auto number = static_cast<TensorNumber>(rows_.size());
  auto& namesakes = numbers_[name];
  namesakes.push_back(number);
  buckets_[next_bucket_] = {number};
  rows_.push_back({.name = std::move(name), .signature = signature, .bucket = next_bucket_++});
  if (namesakes.size() > 1) {
    for (TensorNumber namesake : namesakes) rows_[namesake].ambiguous = true;
  }
  return number;
}

std::vector<BucketId> PlanCache::regroup(const Replan& record) {
  std::vector<BucketId> retired;
  for (const auto& members : record.buckets) {
    for (TensorNumber number : members) {
      if (!known(number)) throw Error(ErrorCode::backend, "malformed control message (unknown tensor in a plan)");
      BucketId& bucket = rows_[number].bucket;
      if (buckets_.erase(bucket) > 0) retired.push_back(bucket);
      bucket = next_bucket_;
    }
    buckets_[next_bucket_++] = members;
  }
  return retired;
}

std::vector<BucketId> PlanCache::isolate(std::string_view name) {
  std::vector<BucketId> retired;
  for (TensorNumber number : numbers(name)) {
    Replan split{{{number}}};
    auto rest = *members(rows_[number].bucket);
    std::erase(rest, number);
    if (!rest.empty()) split.buckets.push_back(std::move(rest));
    for (BucketId bucket : regroup(split)) retired.push_back(bucket);
  }
  return retired;
}

void PlanCache::set_sizes(const SizesOfRanks& news) {
  if (!known(news.tensor)) throw Error(ErrorCode::backend, "malformed control message (sizes of an unknown tensor)");
  for (int rank : news.ranks.ranks()) rows_[news.tensor].sizes[rank] = news.sizes;
}

std::vector<SizesOfRanks> PlanCache::sizes_of(TensorNumber number, const RankSet& ranks) const {
  std::vector<SizesOfRanks> result;
  for (int rank : ranks.ranks()) {
    const auto found = rows_[number].sizes.find(rank);
    if (found == rows_[number].sizes.end()) continue;
    if (result.empty() || result.back().sizes != found->second) result.push_back({0, {}, found->second});
    result.back().ranks.add(rank);
  }
  return result;
}

std::optional<TensorNumber> PlanCache::find(std::string_view name, const Signature& signature) const {
  for (TensorNumber number : numbers(name)) {
    if (rows_[number].signature == signature) return number;
  }
  return std::nullopt;
}

std::optional<TensorNumber> PlanCache::find(Submission& submission) const {
  const Request& request = submission.request;
  Pending& pending = submission.pending;
  if (pending.number_checked) return pending.number;
  const bool same = pending.number && known(*pending.number) && rows_[*pending.number].signature == request.signature &&
                    rows_[*pending.number].name == request.name;
  if (!same) pending.number = find(request.name, request.signature);
  pending.number_checked = pending.number.has_value();
  return pending.number;
}

std::vector<std::vector<std::int64_t>> PlanCache::sizes_by_rank(TensorNumber number, const std::vector<int>& ranks,
                                                                const std::vector<SizesOfRanks>& news) const {
  const auto& last = rows_[number].sizes;
  std::vector<std::vector<std::int64_t>> sizes;
  for (int rank : ranks) {
    const auto found = last.find(rank);
    sizes.push_back(found == last.end() ? std::vector<std::int64_t>() : found->second);
    for (const SizesOfRanks& update : news) {
      if (update.tensor == number && update.ranks.contains(rank)) sizes.back() = update.sizes;
    }
  }
  return sizes;
}

std::span<const TensorNumber> PlanCache::numbers(std::string_view name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) return {};
  return found->second;
}

const std::vector<TensorNumber>* PlanCache::members(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found == buckets_.end() ? nullptr : &found->second;
}

}  // namespace kolo
