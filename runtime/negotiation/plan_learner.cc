#include "runtime/negotiation/plan_learner.h"

#include <algorithm>
#include <set>
#include <utility>

#include <kolo/detail/hash.h>

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

/// Makes the plan have these buckets; who shared a bucket with their tensors keeps sharing one.
void regroup(std::vector<std::vector<TensorNumber>> buckets, const PlanCache& plan, Replan& change) {
  std::set<BucketId> touched;
  std::set<TensorNumber> moved;
  for (auto& bucket : buckets) {
    for (TensorNumber number : bucket) {
      if (plan.known(number)) touched.insert(plan.row(number).bucket);
    }
    moved.insert(bucket.begin(), bucket.end());
    change.buckets.push_back(std::move(bucket));
  }
  for (BucketId bucket : touched) {
    std::vector<TensorNumber> rest;
    for (TensorNumber number : *plan.members(bucket)) {
      if (!moved.contains(number)) rest.push_back(number);
    }
    if (!rest.empty()) change.buckets.push_back(std::move(rest));
  }
}

/// The candidates among the thresholds that differ in how they lay out these tensors.
std::vector<std::int64_t> distinct_thresholds(const std::vector<Fusible>& tensors, std::int64_t fusion_bytes) {
  std::vector<std::int64_t> distinct;
  std::vector<std::vector<TensorNumber>> last;
  for (const std::int64_t candidate : fusion_candidates(fusion_bytes)) {
    auto buckets = fuse(tensors, candidate);
    if (buckets != last) distinct.push_back(candidate);
    last = std::move(buckets);
  }
  return distinct;
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
  if (tuning_ && run_.empty()) tuning_->may_change = !tuning_->last.empty();
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
  if (tuning_ && std::exchange(tuning_->may_change, false)) {  // before what has been submitted since
    if (auto proposal = change_threshold(plan)) return proposal;
  }
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

/// The tensors of a run; those that are new are defined.
std::vector<Fusible> PlanLearner::fusible(const RunOfSubmissions& run, const PlanCache& plan, Replan& change) const {
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
  return tensors;
}

std::optional<Replan> PlanLearner::plan_run(RunOfSubmissions& run, const PlanCache& plan) {
  // Where layouts matter nothing here depends on what the plan happens to be: that a bucket is split may not be known
  // yet.
  if (run.size() == 1 && !of_layouts_) {  // of a program that waits for each: it runs alone already
    const auto number = plan.find(*run.front());
    if (number && plan.members(plan.row(*number).bucket)->size() == 1) return std::nullopt;
  }
  Replan change;
  const std::vector<Fusible> tensors = fusible(run, plan, change);
  if (tensors.empty() || (tensors.size() == 1 && !change.defined.empty())) return std::nullopt;  // alone: needs no plan
  if (planned_.size() >= max_runs_remembered) {
    planned_.clear();
    tuning_.reset();
  }
  const std::uint64_t hash = hash_of(tensors);
  const auto [known, is_first] = planned_.try_emplace(hash);
  const bool heals = !is_first && change.defined.empty();
  if (heals && tune(hash, known->second, tensors, run)) return std::nullopt;
  if (heals && ++known->second.runs < known->second.patience) return std::nullopt;
  known->second.runs = 0;

  auto buckets = fuse(tensors, known->second.fusion_bytes.value_or(fusion_bytes_));
  std::erase_if(buckets, [&](const auto& bucket) {
    const bool is_planned = plan.known(bucket.front()) && *plan.members(plan.row(bucket.front()).bucket) == bucket;
    return is_planned ||
           (heals && std::ranges::any_of(bucket, [&](TensorNumber number) { return apart_.contains(number); }));
  });
  if (buckets.empty()) return std::nullopt;
  if (heals && !of_layouts_) known->second.patience = longest_patience;
  regroup(std::move(buckets), plan, change);
  return change;
}

/// Whether this run's threshold is being tuned. A step of it has begun with the run.
bool PlanLearner::tune(std::uint64_t hash, Known& known, const std::vector<Fusible>& tensors, RunOfSubmissions& run) {
  if (known.fusion_bytes) alike_ = 0;
  if (!known.may_be_tuned || (!tuning_ && tunings_left_ == 0)) return false;
  const auto began = run.front()->request.submitted;
  const bool apart = is_apart(tensors);
  if (!tuning_ || tuning_->run != hash) {
    const auto thresholds = distinct_thresholds(tensors, largest_);
    known.may_be_tuned = !apart && thresholds.size() > 1;
    if (!known.may_be_tuned) return false;
    const auto was_tuned = [this](const Fusible& one) { return tuned_tensors_.contains(one.number); };
    if (std::ranges::any_of(tensors, was_tuned) && ++alike_ <= most_alike) return false;
    if (tuning_ && ++tuning_->others > most_others) tuning_.reset();  // that one does not come back
    if (tuning_ || tunings_left_ == 0) return false;
    --tunings_left_;
    tuning_ = {.run = hash, .tuner = FusionTuner(thresholds)};
  } else if (apart) {
    tuning_.reset();
    return known.may_be_tuned = false;
  } else {
    tuning_->tuner.took(tuning_->of_step, began - tuning_->began);
  }
  tuning_->others = 0;
  tuning_->of_step = tuning_->in_use;
  tuning_->began = began;
  tuning_->wanted = tuning_->tuner.next();
  if (tuning_->tuner.settled() && tuning_->wanted == tuning_->in_use) {
    known = {.fusion_bytes = tuning_->wanted, .may_be_tuned = false};
    fusion_bytes_ = tuning_->wanted;
    for (const Fusible& one : tensors) tuned_tensors_.insert(one.number);
    tuning_.reset();
  } else {
    tuning_->last.clear();
    if (tuning_->wanted != tuning_->in_use) tuning_->last.swap(run);
  }
  return true;
}

std::optional<Replan> PlanLearner::change_threshold(const PlanCache& plan) {
  if (!std::ranges::all_of(tuning_->last,
                           [](const SubmissionPtr& one) { return one->pending.agreed || one->completion.done; }))
    return std::nullopt;
  Replan change;
  const RunOfSubmissions run = std::exchange(tuning_->last, {});
  const std::vector<Fusible> tensors = fusible(run, plan, change);
  if (!change.defined.empty() || hash_of(tensors) != tuning_->run || is_apart(tensors)) return std::nullopt;
  tuning_->in_use = tuning_->wanted;
  auto buckets = fuse(tensors, tuning_->in_use);
  std::erase_if(buckets, [&](const auto& bucket) { return *plan.members(plan.row(bucket.front()).bucket) == bucket; });
  if (buckets.empty()) return std::nullopt;
  regroup(std::move(buckets), plan, change);
  return change;
}

}  // namespace kolo
