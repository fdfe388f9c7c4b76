#include "runtime/negotiation/plan_learner.h"

#include <algorithm>
#include <set>
#include <utility>

#include <kolo/detail/hash.h>

#include "runtime/negotiation/fusion.h"

namespace kolo {
namespace {

std::uint64_t hash_of(const std::vector<Fusible>& run) {
  detail::Hash hash;
  for (const Fusible& tensor : run) hash.add(tensor.number);
  return hash.value();
}

std::int64_t bytes_of(const Submission& submission) {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : submission.request.tensors) sum += static_cast<std::int64_t>(tensor.in.bytes());
  return sum;
}

/// Announced as a failure, or complete with one.
bool failed(const Submission& submission) {
  return submission.pending.objection || submission.completion.failure;
}

}  // namespace

void PlanLearner::submitted(const SubmissionPtr& submission, bool is_new) {
  if (of_layouts_) {
    std::erase_if(unplanned_, [this](RunOfSubmissions& run) {
      if (std::ranges::any_of(run, [this](const auto& one) { return unseen_.contains(one->request.name()); }))
        return false;
      finished_.push_back(std::move(run));
      return true;
    });
    unseen_.insert(submission->request.name());
  } else if (is_new) {
    open_names_.insert(submission->request.name());
  }
  run_.push_back(submission);
  if (run_.size() == longest_run) waited();
}

void PlanLearner::waited() {
  ++runs_;
  if (run_.empty()) return;
  if (of_layouts_) {
    unplanned_.push_back(std::exchange(run_, {}));
    if (unplanned_.size() > most_unplanned) unplanned_.pop_front();
  } else {
    finished_.push_back(std::exchange(run_, {}));
  }
  if (!open_names_.empty()) open_names_.clear();  // goes through all its buckets, even if it is empty
}

std::optional<Replan> PlanLearner::propose(const PlanCache& plan) {
  while (!finished_.empty()) {
    RunOfSubmissions run = std::move(finished_.front());
    finished_.erase(finished_.begin());
    auto proposal = plan_run(run, plan);
    run.clear();
    if (run_.empty()) run_.swap(run);  // the next one has its memory
    if (proposal) return proposal;
  }
  return std::nullopt;
}

std::optional<Replan> PlanLearner::plan_run(const RunOfSubmissions& run, const PlanCache& plan) {
  // Where layouts matter nothing here depends on what the plan happens to be: that a bucket is split may not be known
  // yet.
  if (run.size() == 1 && !of_layouts_) {  // of a program that waits for each: it runs alone already
    const auto number = plan.find(*run.front());
    if (number && plan.members(plan.row(*number).bucket)->size() == 1) return std::nullopt;
  }
  Replan change;
  std::vector<Fusible> tensors;
  std::unordered_set<TensorNumber> seen;  // a tensor that ran twice without being waited for counts once
  std::set<std::string_view> named;       // as does one that is new
  for (const SubmissionPtr& submission : run) {
    if (failed(*submission) || !moves_data(submission->request.signature.kind)) continue;
    auto number = plan.find(*submission);
    const bool is_new = !number;
    // What is done was withdrawn. A name with another signature goes alone anyway, when all have announced it.
    if (is_new && (of_layouts_ || submission->completion.done || !plan.numbers(submission->request.name()).empty() ||
                   !named.insert(submission->request.name()).second))
      continue;
    if (is_new) {
      number = plan.next_number(change.defined.size());
      change.defined.push_back({submission->request.name(), submission->request.signature});
    } else {
      if (!seen.insert(*number).second) continue;
    }
    tensors.push_back(
        {*number, &submission->request.signature, bytes_of(*submission), !is_new && plan.row(*number).ambiguous});
  }
  if (tensors.empty() || (tensors.size() == 1 && !change.defined.empty())) return std::nullopt;  // alone: needs no plan
  if (planned_.size() >= max_runs_remembered) planned_.clear();
  const auto [known, is_first] = planned_.try_emplace(hash_of(tensors));
  const bool heals = !is_first && change.defined.empty();
  if (heals && ++known->second.runs < known->second.patience) return std::nullopt;
  known->second.runs = 0;

  std::set<BucketId> touched;
  for (auto& bucket : fuse(tensors, fusion_bytes_)) {
    if (plan.known(bucket.front()) && *plan.members(plan.row(bucket.front()).bucket) == bucket) continue;
    if (heals && std::ranges::any_of(bucket, [&](TensorNumber number) { return apart_.contains(number); })) continue;
    for (TensorNumber number : bucket) {
      if (plan.known(number)) touched.insert(plan.row(number).bucket);
    }
    change.buckets.push_back(std::move(bucket));
  }
  if (change.buckets.empty()) return std::nullopt;
  if (heals && !of_layouts_) known->second.patience = longest_patience;

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
