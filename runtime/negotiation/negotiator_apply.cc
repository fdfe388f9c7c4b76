#include <fmt/format.h>

#include <utility>

#include "runtime/coordinator/neutral_contribution.h"
#include "runtime/negotiation/mismatch.h"
#include "runtime/negotiation/negotiator.h"
#include "runtime/operation/block_sizes.h"

// What every rank does with the decisions, all in the same order, and what follows from them.

namespace kolo {
namespace {

/// Gives a submission the rows that the ranks have agreed on.
void tell_rows(Submission& submission, const AgreedSizes& sizes) {
  submission.output_rows.clear();
  for (std::size_t tensor = 0; tensor < submission.tensors.size(); ++tensor) {
    submission.tensors[tensor].rows = block_rows(sizes, tensor);
    submission.output_rows.push_back(sizes.rows_received(tensor, submission.group->rank));
  }
  if (!submission.received_rows) return;
  submission.received_rows->clear();
  for (int from = 0; from < sizes.ranks(); ++from)
    submission.received_rows->push_back(sizes.rows(0, from, submission.group->rank));
}

}  // namespace

void Negotiator::down(const DownRecord& record) {
  for (Writer& child : to_child_) encode(child, record);
  std::visit([&](const auto& decision) { apply(decision); }, record);
}

void Negotiator::apply(const Define& record) {
  held_.erase(record.name);
  wanted_.erase(record.name);
  answer(table_.defined(record.name, record.signature));
  local_.defined(plan_.define(record.name, record.signature), plan_);
}

void Negotiator::apply(const Replan& record) {
  for (const Define& define : record.defined) apply(define);
  const BucketId first_new = plan_.next_bucket();
  after_regroup(plan_.regroup(record), first_new);
}

void Negotiator::apply(const Run& record) {
  for (const SizesOfRanks& told : record.sizes) plan_.set_sizes(told);
  for (BucketId bucket : record.buckets) run(bucket);
  ++agreements_;
}

void Negotiator::run(BucketId bucket) {
  const auto away = absent();
  const auto sizes_of = [&](TensorNumber number) { return sizes_by_rank(number, {}); };
  Outstanding::StandIn substitute;
  if (joined()) {
    substitute = [&](TensorNumber number) {
      const PlanCache::Row& tensor = plan_.row(number);
      const auto sizes = sizes_of(number);
      const AgreedSizes agreed{tensor.signature.kind, sizes, away};
      if (has_rows(tensor.signature.kind) && to_be_allocated(agreed)) return SubmissionPtr();
      return neutral_contribution(tensor.name, tensor.signature, group_, &agreed, gpu_);
    };
  }
  const std::vector<TensorNumber> numbers =
      plan_.members(bucket) ? *plan_.members(bucket) : std::vector<TensorNumber>();
  AgreedBucket agreed{local_.take(bucket, plan_, substitute), away};
  table_.ran(bucket, plan_);
  bool allocates = false;
  for (std::size_t i = 0; i < agreed.members.size(); ++i) {
    if (!has_rows(plan_.row(numbers[i]).signature.kind)) continue;
    const auto sizes = sizes_of(numbers[i]);
    const AgreedSizes rows{plan_.row(numbers[i]).signature.kind, sizes, away};
    allocates |= to_be_allocated(rows);
    if (agreed.members[i] && !joined()) tell_rows(*agreed.members[i], rows);
  }
  for (const SubmissionPtr& member : agreed.members) {
    if (!member) continue;
    member->agreed = true;
    std::erase(waited_for_, member);
    std::erase(withdrawing_, member);
    if (joined() && !moves_data(member->signature.kind)) decisions_.without_this_rank.push_back(member->name);
    if (allocates && !joined()) decisions_.to_allocate.push_back(member);
  }
  if (!allocates) decisions_.run.push_back(std::move(agreed));
}

/// All ranks' sizes of a tensor, by rank of the group: what was told now, else as of the last run.
std::vector<std::vector<std::int64_t>> Negotiator::sizes_by_rank(TensorNumber number,
                                                                 const std::vector<SizesOfRanks>& told) const {
  const auto& last = plan_.row(number).sizes;
  std::vector<std::vector<std::int64_t>> sizes;
  for (int rank : group_->ranks) {
    const auto found = last.find(rank);
    sizes.push_back(found == last.end() ? std::vector<std::int64_t>() : found->second);
    for (const SizesOfRanks& news : told) {
      if (news.tensor == number && news.ranks.contains(rank)) sizes.back() = news.sizes;
    }
  }
  return sizes;
}

std::vector<int> Negotiator::absent() const {
  if (joined_.empty()) return {};
  std::vector<int> ranks;
  for (int i = 0; i < group_->size(); ++i) {
    if (joined_.contains(group_->ranks[static_cast<std::size_t>(i)])) ranks.push_back(i);
  }
  return ranks;
}

void Negotiator::apply(const Reject& record) {
  held_.erase(record.name);
  wanted_.erase(record.name);
  if (joined()) decisions_.without_this_rank.push_back(record.name);
  table_.rejected(record.name);
  for (const SubmissionPtr& submission : local_.take(record.name, plan_)) {
    std::erase(waited_for_, submission);
    std::erase(withdrawing_, submission);
    decisions_.failed.push_back({submission, record.failure});
  }
  const BucketId first_new = plan_.next_bucket();
  after_regroup(plan_.isolate(record.name), first_new);
}

void Negotiator::apply(const Retracted& record) {
  answer(table_.retracted(record.what, plan_));
}

void Negotiator::apply(const Joined& record) {
  joined_.add(record.rank);
  last_to_join_ = record.rank;
  const bool all = joined_.size() == group_->size();
  if (all) joined_ = {};
  if (position_.root()) {
    for (const BarrierDone& released : monitored_barrier_.joined(joined_)) down(released);
  }
  table_.joined(joined_, plan_);
  if (!all) return;
  join_announced_ = false;
  for (const SubmissionPtr& submission : std::exchange(joining_, {})) {
    submission->agreed = true;
    submission->last_to_join = last_to_join_;
    decisions_.completed.push_back(submission);
  }
}

void Negotiator::apply(const BarrierDone& record) {
  if (joined()) decisions_.without_this_rank.push_back(record.name);
  const SubmissionPtr submission = monitored_barrier_.released(record);
  if (!submission) return;
  submission->agreed = true;
  if (record.failure) {
    decisions_.failed.push_back({submission, *record.failure});
  } else {
    decisions_.completed.push_back(submission);
  }
}

void Negotiator::apply(const Left& record) {
  if (departed_.empty()) first_departed_ = record.rank;  // the same on every rank, whoever follows
  departed_.add(record.rank);
  if (record.abandoned && record.rank != position_.rank) {
    abandoned_.add(record.rank);
    const Failure failure{ErrorCode::aborted,
                          fmt::format("group {}: rank {} left without finishing (an error ended its program); "
                                      "see what that rank printed",
                                      group_->name, record.rank)};
    if (!broken_) apply(GroupFailed{failure});
    return;
  }
  for (const SubmissionPtr& submission : take_everything()) {
    decisions_.failed.push_back({submission, departure_failure(*submission)});
  }
  waited_for_.clear();
  withdrawing_.clear();
}

void Negotiator::apply(const GroupFailed& record) {
  if (broken_) return;  // the first one decides, for those who submit later too
  broken_ = record.failure;
  decisions_.broken = record.failure;
  for (const SubmissionPtr& submission : take_everything()) decisions_.failed.push_back({submission, record.failure});
  waited_for_.clear();
  withdrawing_.clear();
}

void Negotiator::apply(const DeviceFault& record) {
  ++faults_;
  decisions_.faults.push_back({decisions_.run.size(), record.failure});
}

/// Whatever waits here for the others.
std::vector<SubmissionPtr> Negotiator::take_everything() {
  std::vector<SubmissionPtr> taken = local_.take_all();
  for (const SubmissionPtr& submission : monitored_barrier_.take_all()) taken.push_back(submission);
  for (const SubmissionPtr& submission : std::exchange(joining_, {})) taken.push_back(submission);
  return taken;
}

// ---- consequences ---------------------------------------------------------------------------------------------------

/// What was announced of a retired bucket is void on every rank alike: each announces anew what is complete now.
void Negotiator::after_regroup(const std::vector<BucketId>& retired, BucketId first_new) {
  table_.retired(retired, plan_);
  const auto complete = local_.regrouped(retired, first_new, plan_);
  std::erase_if(withdrawing_, [&](const SubmissionPtr& submission) {
    if (!local_.numbered(*submission, plan_)) return false;
    if (plan_.row(*plan_.find(*submission)).bucket < first_new) return false;
    local_.remove(*submission, plan_);
    std::erase(waited_for_, submission);
    decisions_.withdrawn.push_back(submission);
    return true;
  });
  for (BucketId bucket : complete) {
    if (local_.announced(bucket)) up(0, ready(bucket));
  }
  for (const SubmissionPtr& submission : waited_for_) {
    if (const auto cut = local_.cut_for(*submission, plan_)) up(0, *cut);
  }
}

void Negotiator::answer(const ReadyTable::Answers& answers) {
  for (const auto& [child, what] : answers) answer(child, what);
}

void Negotiator::answer(int child, const Retract& what) {
  if (child == 0) {
    withdrawn(what);
  } else {
    encode(to_child_[static_cast<std::size_t>(child - 1)], DownRecord(Retracted{what}));
  }
}

void Negotiator::withdrawn(const Retract& what) {
  std::erase_if(withdrawing_, [&](const SubmissionPtr& submission) {
    const bool numbered = local_.numbered(*submission, plan_);
    const bool meant = what.bucket ? numbered && plan_.row(*plan_.find(*submission)).bucket == *what.bucket
                                   : !numbered && submission->name == what.name;
    if (!meant) return false;
    local_.remove(*submission, plan_);
    std::erase(waited_for_, submission);
    decisions_.withdrawn.push_back(submission);
    return true;
  });
}

Failure Negotiator::departure_failure(const Submission& submission) const {
  return {ErrorCode::closed,
          fmt::format(
              "{}: {} closed the session (the operation needs every rank of the group); close sessions when all ranks "
              "are done",
              describe(submission.signature.kind, submission.name, group_->name), to_string(RankSet{first_departed_}))};
}

}  // namespace kolo
