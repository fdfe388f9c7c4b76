#include "runtime/negotiation/plan_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "runtime/operation/block_sizes.h"
#include "runtime/operation/submission.h"

namespace kolo {

TensorNumber PlanCache::define(std::string name, const Signature& signature) {
  const TensorNumber number = next_number();
  if (free_.empty()) rows_.emplace_back();
  if (!free_.empty()) free_.pop_back();
  Name& named = names_[name];
  named.voided = ++epoch_;
  named.numbers.push_back(number);
  buckets_[next_bucket_] = {number};
  rows_[number] = {.name = std::move(name), .signature = signature, .bucket = next_bucket_++, .known = true};
  if (named.numbers.size() > 1) {
    for (TensorNumber namesake : named.numbers) rows_[namesake].ambiguous = true;
  }
  return number;
}

std::vector<BucketId> PlanCache::regroup(const Replan& record) {
  std::vector<TensorNumber> all;
  for (const auto& members : record.buckets) {
    if (members.empty()) throw Error(ErrorCode::backend, "malformed control message (an empty bucket in a plan)");
    all.insert(all.end(), members.begin(), members.end());
  }
  check(all);
  std::vector<BucketId> retired;
  for (TensorNumber number : all) retired.push_back(rows_[number].bucket);
  std::ranges::sort(retired);
  retired.erase(std::unique(retired.begin(), retired.end()), retired.end());
  std::size_t size = 0;
  for (BucketId bucket : retired) size += buckets_.at(bucket).size();
  if (size != all.size())
    throw Error(ErrorCode::backend, "malformed control message (a plan without all tensors of a bucket)");
  for (BucketId bucket : retired) buckets_.erase(bucket);
  for (const auto& members : record.buckets) {
    for (TensorNumber number : members) rows_[number].bucket = next_bucket_;
    buckets_[next_bucket_++] = members;
  }
  return retired;
}

void PlanCache::check(std::vector<TensorNumber> tensors) const {
  std::ranges::sort(tensors);
  if (std::ranges::adjacent_find(tensors) != tensors.end())
    throw Error(ErrorCode::backend, "malformed control message (a tensor twice in a plan)");
  if (!std::ranges::all_of(tensors, [this](TensorNumber number) { return known(number); }))
    throw Error(ErrorCode::backend, "malformed control message (unknown tensor in a plan)");
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

std::vector<BucketId> PlanCache::forget(const Forget& message, std::vector<std::string>& names) {
  std::vector<BucketId> retired;
  forgotten_ = ++epoch_;
  for (TensorNumber number : message.tensors) {
    Row& row = rows_[number];
    if (std::ranges::find(retired, row.bucket) == retired.end()) retired.push_back(row.bucket);
    std::erase(buckets_.at(row.bucket), number);
    const auto name = names_.find(row.name);
    std::erase(name->second.numbers, number);
    if (name->second.numbers.empty() && !name->second.expired) {
      if (!message.in_conflict) names.push_back(std::move(row.name));
      names_.erase(name);
    }
    row = {};
    free_.push_back(number);
  }
  for (BucketId bucket : retired) {
    auto rest = std::move(buckets_.at(bucket));
    buckets_.erase(bucket);
    for (TensorNumber number : rest) rows_[number].bucket = next_bucket_;
    if (!rest.empty()) buckets_[next_bucket_++] = std::move(rest);
  }
  return retired;
}

TensorNumber PlanCache::next_number(std::size_t more) const {
  if (more < free_.size()) return free_[free_.size() - 1 - more];
  return static_cast<TensorNumber>(rows_.size() + more - free_.size());
}

std::vector<BucketId> PlanCache::expire(const std::string& name) {
  Name& named = names_[name];
  named.voided = ++epoch_;
  named.expired = true;
  return isolate(name);
}

bool PlanCache::voids(std::string_view name, std::uint64_t known) const {
  if (known < forgotten_) return true;
  const auto found = names_.find(name);
  return found != names_.end() && known < found->second.voided;
}

void PlanCache::set_sizes(const SizesOfRanks& news) {
  if (!known(news.tensor)) throw Error(ErrorCode::backend, "malformed control message (sizes of an unknown tensor)");
  for (int rank : news.ranks.ranks()) rows_[news.tensor].sizes[rank] = news.sizes;
  rows_[news.tensor].agreed = nullptr;
}

const AgreedRows& PlanCache::agreed_rows(TensorNumber number, const GroupInfo& group, const std::vector<int>& absent) {
  Row& row = rows_[number];
  if (!row.agreed || row.agreed->absent != absent) {
    row.agreed = std::make_shared<const AgreedRows>(row.signature.kind, sizes_by_rank(number, group.ranks, {}, absent),
                                                    absent, group.rank);
  }
  return *row.agreed;
}

bool PlanCache::as_before(TensorNumber number, const std::vector<SizesOfRanks>& news,
                          const std::vector<int>& absent) const {
  const auto& agreed = rows_[number].agreed;
  return agreed && agreed->absent == absent &&
         std::ranges::none_of(news, [&](const SizesOfRanks& sizes) { return sizes.tensor == number; });
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
  const std::uint64_t now = forgotten_ + 1;
  if (pending.number_checked == now) return pending.number;
  const bool same = pending.number && known(*pending.number) && rows_[*pending.number].signature == request.signature &&
                    rows_[*pending.number].name == request.name();
  if (!same) pending.number = find(request.name(), request.signature);
  pending.number_checked = pending.number ? now : 0;
  return pending.number;
}

std::vector<std::vector<std::int64_t>> PlanCache::sizes_by_rank(TensorNumber number, const std::vector<int>& ranks,
                                                                const std::vector<SizesOfRanks>& news,
                                                                const std::vector<int>& absent) const {
  const auto& [last, signature] = std::tie(rows_[number].sizes, rows_[number].signature);
  const std::size_t wanted = std::max<std::size_t>(signature.members.size(), 1) *
                             sizes_per_tensor(signature.kind, static_cast<int>(ranks.size()));
  std::vector<std::vector<std::int64_t>> sizes;
  for (int rank : ranks) {
    const auto found = last.find(rank);
    sizes.push_back(found == last.end() ? std::vector<std::int64_t>() : found->second);
    for (const SizesOfRanks& update : news) {
      if (update.tensor == number && update.ranks.contains(rank)) sizes.back() = update.sizes;
    }
    if (has_rows(signature.kind) && sizes.back().size() != wanted &&
        !std::ranges::binary_search(absent, static_cast<int>(sizes.size()) - 1))
      throw Error(ErrorCode::backend, "malformed control message (not the sizes of its tensor)");
  }
  return sizes;
}

std::span<const TensorNumber> PlanCache::numbers(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) return {};
  return found->second.numbers;
}

const std::vector<TensorNumber>& PlanCache::to_run(BucketId bucket, const GroupInfo& group,
                                                   const std::vector<int>& absent) {
  const auto* const numbers = members(bucket);
  if (!numbers)
    throw Error(ErrorCode::backend, fmt::format("the ranks agreed to run bucket {}, which is not planned", bucket));
  for (TensorNumber number : *numbers) {
    if (has_rows(rows_[number].signature.kind)) (void)agreed_rows(number, group, absent);
  }
  return *numbers;
}

const std::vector<TensorNumber>* PlanCache::members(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found == buckets_.end() ? nullptr : &found->second;
}

}  // namespace kolo
