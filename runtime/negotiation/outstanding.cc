#include "runtime/negotiation/outstanding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kolo {

/// The place of a tensor that is about to wait.
SubmissionPtr& Outstanding::at(TensorNumber number) {
  if (number >= numbered_.size()) numbered_.resize(number + 1);
  numbered_count_ += !numbered_[number];
  return numbered_[number];
}

SubmissionPtr Outstanding::take_numbered(TensorNumber number) {
  if (!waits(number)) return nullptr;
  --numbered_count_;
  return std::exchange(numbered_[number], nullptr);
}

std::optional<BucketId> Outstanding::add(const SubmissionPtr& submission, const PlanCache& plan) {
  const auto number = submission->failure ? std::nullopt : plan.find(*submission);
  if (!number) {
    named_[submission->name] = submission;
    return std::nullopt;
  }
  at(*number) = submission;
  const BucketId bucket = plan.row(*number).bucket;
  State& state = buckets_[bucket];
  if (++state.submitted < plan.members(bucket)->size()) return std::nullopt;
  state.announced = true;
  return bucket;
}

bool Outstanding::numbered(const Submission& submission, const PlanCache& plan) const {
  const auto number = plan.find(submission);
  return number && waits(*number) && numbered_[*number].get() == &submission;
}

bool Outstanding::holds(const Submission& submission, const PlanCache& plan) const {
  const auto found = named_.find(submission.name);
  return (found != named_.end() && found->second.get() == &submission) || numbered(submission, plan);
}

void Outstanding::defined(TensorNumber number, const PlanCache& plan) {
  const auto found = named_.find(plan.row(number).name);
  if (found == named_.end() || found->second->failure || found->second->signature != plan.row(number).signature) return;
  at(number) = std::move(found->second);
  named_.erase(found);
  buckets_[plan.row(number).bucket] = {.submitted = 1, .announced = true};
}

std::vector<BucketId> Outstanding::regrouped(const std::vector<BucketId>& retired, BucketId first_new,
                                             const PlanCache& plan) {
  for (BucketId bucket : retired) buckets_.erase(bucket);
  std::vector<BucketId> complete;
  for (BucketId bucket = first_new; bucket < plan.next_bucket(); ++bucket) {
    const auto* members = plan.members(bucket);
    if (!members) continue;
    State state;
    for (TensorNumber number : *members) state.submitted += waits(number);
    if (state.submitted == 0) continue;
    state.announced = state.submitted == members->size();
    buckets_[bucket] = state;
    if (state.announced) complete.push_back(bucket);
  }
  return complete;
}

std::vector<SubmissionPtr> Outstanding::take(BucketId bucket, const PlanCache& plan,
                                             const StandIn& neutral_contribution) {
  const auto* members = plan.members(bucket);
  if (!members)
    throw Error(ErrorCode::backend, fmt::format("the ranks agreed to run bucket {}, which is not planned", bucket));
  std::vector<SubmissionPtr> taken;
  taken.reserve(members->size());
  for (TensorNumber number : *members) {
    SubmissionPtr here = take_numbered(number);
    if (!here && neutral_contribution) {
      taken.push_back(neutral_contribution(number));
      continue;
    }
    if (!here) {
      throw Error(ErrorCode::backend, fmt::format("the ranks agreed to run '{}', which this rank has not submitted",
                                                  plan.row(number).name));
    }
    taken.push_back(std::move(here));
  }
  buckets_.erase(bucket);
  return taken;
}

std::vector<SubmissionPtr> Outstanding::take(const std::string& name, const PlanCache& plan) {
  std::vector<SubmissionPtr> taken;
  if (const auto found = named_.find(name); found != named_.end()) {
    taken.push_back(std::move(found->second));
    named_.erase(found);
  }
  for (TensorNumber number : plan.numbers(name)) {
    const SubmissionPtr submission = find(number);
    if (!submission) continue;
    remove(*submission, plan);
    taken.push_back(submission);
  }
  return taken;
}

void Outstanding::remove(const Submission& submission, const PlanCache& plan) {
  if (const auto found = named_.find(submission.name); found != named_.end() && found->second.get() == &submission) {
    named_.erase(found);
    return;
  }
  if (!numbered(submission, plan)) return;
  const TensorNumber number = *plan.find(submission);
  take_numbered(number);
  State& state = buckets_[plan.row(number).bucket];
  state.announced = false;
  if (--state.submitted == 0) buckets_.erase(plan.row(number).bucket);
}

std::vector<SubmissionPtr> Outstanding::take_all() {
  std::vector<SubmissionPtr> taken;
  for (SubmissionPtr& submission : numbered_) {
    if (submission) taken.push_back(std::move(submission));
  }
  for (auto& [name, submission] : named_) taken.push_back(std::move(submission));
  numbered_.clear();
  numbered_count_ = 0;
  named_.clear();
  buckets_.clear();
  return taken;
}

std::optional<SplitBucket> Outstanding::cut_for(const Submission& submission, const PlanCache& plan) {
  if (!numbered(submission, plan)) return std::nullopt;
  const BucketId bucket = plan.row(*plan.find(submission)).bucket;
  State& state = buckets_[bucket];
  if (state.announced || state.cut_asked) return std::nullopt;
  SplitBucket cut{bucket, {}};
  for (TensorNumber number : *plan.members(bucket)) {
    if (waits(number) && numbered_[number]->sequence <= submission.flushed_at) cut.members.push_back(number);
  }
  state.cut_asked = true;
  return cut;
}

SubmissionPtr Outstanding::find(TensorNumber number) const {
  return waits(number) ? numbered_[number] : nullptr;
}

std::vector<SubmissionPtr> Outstanding::all() const {
  std::vector<SubmissionPtr> result;
  for (const SubmissionPtr& submission : numbered_) {
    if (submission) result.push_back(submission);
  }
  for (const auto& [name, submission] : named_) result.push_back(submission);
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return result;
}

bool Outstanding::incomplete() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const auto& entry) { return entry.second.submitted > 0 && !entry.second.announced; });
}

bool Outstanding::announced(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && found->second.announced;
}

}  // namespace kolo
