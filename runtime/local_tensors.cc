#include "runtime/local_tensors.h"

#include <fmt/format.h>

#include <algorithm>

namespace kolo {

std::optional<BucketId> LocalTensors::add(const SubmissionPtr& submission, const PlanCache& plan) {
  const auto number = submission->failure ? std::nullopt : plan.find(*submission);
  if (!number) {
    named_[submission->name] = submission;
    return std::nullopt;
  }
  numbered_[*number] = submission;
  const BucketId bucket = plan.row(*number).bucket;
  State& state = buckets_[bucket];
  if (++state.submitted < plan.members(bucket)->size()) return std::nullopt;
  state.announced = true;
  return bucket;
}

bool LocalTensors::numbered(const Submission& submission, const PlanCache& plan) const {
  const auto number = plan.find(submission);
  if (!number) return false;
  const auto found = numbered_.find(*number);
  return found != numbered_.end() && found->second.get() == &submission;
}

bool LocalTensors::holds(const Submission& submission, const PlanCache& plan) const {
  const auto found = named_.find(submission.name);
  return (found != named_.end() && found->second.get() == &submission) || numbered(submission, plan);
}

void LocalTensors::defined(TensorNumber number, const PlanCache& plan) {
  const auto found = named_.find(plan.row(number).name);
  if (found == named_.end() || found->second->failure || found->second->signature != plan.row(number).signature) return;
  numbered_[number] = std::move(found->second);
  named_.erase(found);
  buckets_[plan.row(number).bucket] = {.submitted = 1, .announced = true};
}

std::vector<BucketId> LocalTensors::regrouped(const std::vector<BucketId>& retired, BucketId first_new,
                                              const PlanCache& plan) {
  for (BucketId bucket : retired) buckets_.erase(bucket);
  std::vector<BucketId> complete;
  for (BucketId bucket = first_new; bucket < plan.next_bucket(); ++bucket) {
    const auto* members = plan.members(bucket);
    if (!members) continue;
    State state;
    for (TensorNumber number : *members) state.submitted += numbered_.contains(number);
    if (state.submitted == 0) continue;
    state.announced = state.submitted == members->size();
    buckets_[bucket] = state;
    if (state.announced) complete.push_back(bucket);
  }
  return complete;
}

std::vector<SubmissionPtr> LocalTensors::take(BucketId bucket, const PlanCache& plan, const StandIn& stand_in) {
  const auto* members = plan.members(bucket);
  if (!members) throw Error(ErrorCode::backend, fmt::format("the ranks agreed to run bucket {}, which is not planned", bucket));
  std::vector<SubmissionPtr> taken;
  for (TensorNumber number : *members) {
    const auto found = numbered_.find(number);
    if (found == numbered_.end() && stand_in) {
      taken.push_back(stand_in(number));
      continue;
    }
    if (found == numbered_.end()) {
      throw Error(ErrorCode::backend,
                  fmt::format("the ranks agreed to run '{}', which this rank has not submitted", plan.row(number).name));
    }
    taken.push_back(std::move(found->second));
    numbered_.erase(found);
  }
  buckets_.erase(bucket);
  return taken;
}

std::vector<SubmissionPtr> LocalTensors::take(const std::string& name, const PlanCache& plan) {
  std::vector<SubmissionPtr> taken;
  if (const auto found = named_.find(name); found != named_.end()) {
    taken.push_back(std::move(found->second));
    named_.erase(found);
  }
  for (TensorNumber number : plan.numbers(name)) {
    const auto found = numbered_.find(number);
    if (found == numbered_.end()) continue;
    const SubmissionPtr submission = found->second;
    remove(*submission, plan);
    taken.push_back(submission);
  }
  return taken;
}

void LocalTensors::remove(const Submission& submission, const PlanCache& plan) {
  if (const auto found = named_.find(submission.name); found != named_.end() && found->second.get() == &submission) {
    named_.erase(found);
    return;
  }
  if (!numbered(submission, plan)) return;
  const TensorNumber number = *plan.find(submission);
  numbered_.erase(number);
  State& state = buckets_[plan.row(number).bucket];
  state.announced = false;
  if (--state.submitted == 0) buckets_.erase(plan.row(number).bucket);
}

std::vector<SubmissionPtr> LocalTensors::take_all() {
  std::vector<SubmissionPtr> taken;
  for (auto& [number, submission] : numbered_) taken.push_back(std::move(submission));
  for (auto& [name, submission] : named_) taken.push_back(std::move(submission));
  numbered_.clear();
  named_.clear();
  buckets_.clear();
  return taken;
}

std::optional<Cut> LocalTensors::cut_for(const Submission& submission, const PlanCache& plan) {
  if (!numbered(submission, plan)) return std::nullopt;
  const BucketId bucket = plan.row(*plan.find(submission)).bucket;
  State& state = buckets_[bucket];
  if (state.announced || state.cut_asked) return std::nullopt;
  Cut cut{bucket, {}};
  for (TensorNumber number : *plan.members(bucket)) {
    const auto found = numbered_.find(number);
    if (found != numbered_.end() && found->second->sequence <= submission.flushed_at) cut.members.push_back(number);
  }
  state.cut_asked = true;
  return cut;
}

SubmissionPtr LocalTensors::find(TensorNumber number) const {
  const auto found = numbered_.find(number);
  return found == numbered_.end() ? nullptr : found->second;
}

std::vector<SubmissionPtr> LocalTensors::all() const {
  std::vector<SubmissionPtr> result;
  for (const auto& [number, submission] : numbered_) result.push_back(submission);
  for (const auto& [name, submission] : named_) result.push_back(submission);
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return result;
}

bool LocalTensors::incomplete() const {
  return std::any_of(buckets_.begin(), buckets_.end(), [](const auto& entry) { return entry.second.submitted > 0 && !entry.second.announced; });
}

bool LocalTensors::announced(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && found->second.announced;
}

}  // namespace kolo
