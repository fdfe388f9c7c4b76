#include "runtime/plan_learner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/fusion.h"

namespace kolo {
namespace {

std::uint64_t hash_of(const std::vector<TensorNumber>& run) {  // FNV-1a over the numbers
  std::uint64_t hash = 14695981039346656037ull;
  for (TensorNumber number : run) {
    hash ^= number;
    hash *= 1099511628211ull;
  }
  return hash;
}

}  // namespace

void PlanLearner::submitted(const SubmissionPtr& submission) {
  run_.push_back(submission);
  if (run_.size() == longest_run) waited();
}

void PlanLearner::waited() {
  if (!run_.empty()) finished_.push_back(std::exchange(run_, {}));
  if (finished_.size() > max_finished) finished_.pop_front();
}

std::optional<Regroup> PlanLearner::propose(const PlanCache& plan) {
  while (!finished_.empty()) {
    const RunOfSubmissions& run = finished_.front();
    const bool undecided = std::any_of(run.begin(), run.end(), [&](const SubmissionPtr& submission) {
      return !submission->agreed && !submission->done && !plan.find(submission->name, submission->signature);
    });
    if (undecided) return std::nullopt;
    auto proposal = plan_run(run, plan);
    finished_.pop_front();
    if (proposal) return proposal;
  }
  return std::nullopt;
}

std::optional<Regroup> PlanLearner::plan_run(const RunOfSubmissions& run, const PlanCache& plan) {
  std::vector<TensorNumber> numbers;
  std::set<TensorNumber> seen;  // a tensor that ran twice without being waited for counts once
  for (const SubmissionPtr& submission : run) {
    const auto number = plan.find(submission->name, submission->signature);
    if (number && seen.insert(*number).second) numbers.push_back(*number);
  }
  if (planned_.size() >= max_runs_remembered || !planned_.insert(hash_of(numbers)).second) return std::nullopt;

  Regroup change;
  std::set<BucketId> touched;
  for (auto& bucket : fuse(numbers, plan, fusion_bytes_)) {
    if (*plan.members(plan.row(bucket.front()).bucket) == bucket) continue;
    for (TensorNumber number : bucket) touched.insert(plan.row(number).bucket);
    change.buckets.push_back(std::move(bucket));
  }
  if (change.buckets.empty()) return std::nullopt;

  std::set<TensorNumber> moved;
  for (const auto& bucket : change.buckets) moved.insert(bucket.begin(), bucket.end());
  for (BucketId bucket : touched) {  // who shared a bucket with them keeps sharing one
    std::vector<TensorNumber> rest;
    for (TensorNumber number : *plan.members(bucket)) {
      if (!moved.contains(number)) rest.push_back(number);
    }
    if (!rest.empty()) change.buckets.push_back(std::move(rest));
  }
  return change;
}

}  // namespace kolo
