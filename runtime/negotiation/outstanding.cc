#include "runtime/negotiation/outstanding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/negotiation/fusion.h"

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

Outstanding::State& Outstanding::state_of(BucketId bucket) {
  if (spare_ && !buckets_.contains(bucket)) {
    spare_.key() = bucket;
    spare_.mapped() = {};
    return buckets_.insert(std::move(spare_)).position->second;
  }
  return buckets_[bucket];
}

std::optional<BucketId> Outstanding::add(const SubmissionPtr& submission, const PlanCache& plan) {
  const auto number = plan.find(*submission);
  if (!number) {
    named_[submission->request.name()] = submission;
    return std::nullopt;
  }
  at(*number) = submission;
  const BucketId bucket = plan.row(*number).bucket;
  State& state = state_of(bucket);
  ++state.submitted;
  if (!complete(bucket, state, plan)) {
    if (state.submitted == 1 && layout_matters(submission->request.signature)) open_.push_back(bucket);
    return std::nullopt;
  }
  state.announced = true;
  return bucket;
}

/// The members that wait here and were submitted first, in which run of the program.
std::vector<TensorNumber> Outstanding::oldest_run(BucketId bucket, std::uint64_t& run, const PlanCache& plan) const {
  std::vector<TensorNumber> oldest;
  for (TensorNumber number : *plan.members(bucket)) {
    if (!waits(number)) continue;
    const std::uint64_t its = numbered_[number]->pending.run;
    if (its < run) oldest.clear();
    if (oldest.empty()) run = its;
    if (its == run) oldest.push_back(number);
  }
  return oldest;
}

/// Whether it may be announced.
bool Outstanding::complete(BucketId bucket, const State& state, const PlanCache& plan) const {
  const auto& members = *plan.members(bucket);
  if (state.submitted < members.size()) return false;
  if (members.size() == 1 || !layout_matters(plan.row(members.front()).signature)) return true;
  std::uint64_t run = std::numeric_limits<std::uint64_t>::max();
  return oldest_run(bucket, run, plan).size() == members.size();
}

std::vector<SplitBucket> Outstanding::parted(std::uint64_t run, const PlanCache& plan) {
  std::vector<SplitBucket> result;
  std::erase_if(open_, [&](BucketId bucket) {
    const auto found = buckets_.find(bucket);
    if (found == buckets_.end() || found->second.announced || found->second.split_asked) return true;
    std::uint64_t oldest = run;
    auto members = oldest_run(bucket, oldest, plan);
    if (oldest >= run) return false;  // the program may still add to it
    found->second.split_asked = true;
    result.push_back({bucket, std::move(members)});
    return true;
  });
  return result;
}

bool Outstanding::numbered(Submission& submission, const PlanCache& plan) const {
  const auto number = plan.find(submission);
  return number && waits(*number) && numbered_[*number].get() == &submission;
}

bool Outstanding::holds(Submission& submission, const PlanCache& plan) const {
  const auto found = named_.find(submission.request.name());
  return (found != named_.end() && found->second.get() == &submission) || numbered(submission, plan);
}

std::vector<SubmissionPtr> Outstanding::defined(TensorNumber number, const PlanCache& plan,
                                                std::vector<SubmissionPtr>& gone) {
  const PlanCache::Row& tensor = plan.row(number);
  const auto found = named_.find(tensor.name);
  if (found == named_.end()) return {};
  SubmissionPtr submission = std::move(found->second);
  named_.erase(found);
  if (submission->request.signature != tensor.signature) return voided({std::move(submission)}, gone);
  at(number) = std::move(submission);
  buckets_[tensor.bucket] = {.submitted = 1, .announced = true};
  return {};
}

std::vector<BucketId> Outstanding::regrouped(const std::vector<BucketId>& retired, BucketId first_new,
                                             const PlanCache& plan) {
  for (BucketId bucket : retired) buckets_.erase(bucket);
  std::vector<BucketId> whole;
  for (BucketId bucket = first_new; bucket < plan.next_bucket(); ++bucket) {
    const auto* members = plan.members(bucket);
    if (!members) continue;
    State state;
    for (TensorNumber number : *members) state.submitted += waits(number);
    if (state.submitted == 0) continue;
    state.announced = complete(bucket, state, plan);
    buckets_[bucket] = state;
    if (state.announced) {
      whole.push_back(bucket);
    } else if (layout_matters(plan.row(members->front()).signature)) {
      open_.push_back(bucket);
    }
  }
  return whole;
}

std::vector<SubmissionPtr> Outstanding::take(BucketId bucket, const PlanCache& plan) {
  const std::vector<TensorNumber>& members = *plan.members(bucket);
  std::vector<SubmissionPtr> taken;
  taken.reserve(members.size());
  for (TensorNumber number : members) {  // first: what is taken is lost if the bucket cannot run
    if (waits(number)) continue;
    throw Error(ErrorCode::backend,
                fmt::format("the ranks agreed to run '{}', which this rank has not submitted", plan.row(number).name));
  }
  for (TensorNumber number : members) {
    SubmissionPtr here = take_numbered(number);
    forget(*here);
    taken.push_back(std::move(here));
  }
  if (auto known = buckets_.extract(bucket)) spare_ = std::move(known);
  return taken;
}

void Outstanding::take_from(BucketId first_new, const PlanCache& plan) {
  for (BucketId bucket = first_new; bucket < plan.next_bucket(); ++bucket) {
    const auto* members = plan.members(bucket);
    if (!members || buckets_.erase(bucket) == 0) continue;
    for (TensorNumber number : *members) take_numbered(number);
  }
}

/// It waits here no longer.
void Outstanding::forget(const Submission& submission) {
  const auto is_it = [&](const SubmissionPtr& other) { return other.get() == &submission; };
  std::erase_if(waited_for_, is_it);
  std::erase_if(withdrawing_, is_it);
}

std::vector<SubmissionPtr> Outstanding::take(const std::string& name, const PlanCache& plan) {
  std::vector<SubmissionPtr> taken;
  if (const auto found = named_.find(name); found != named_.end()) {
    forget(*found->second);
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

/// Takes one submission back. Its bucket is incomplete then, and not announced.
void Outstanding::remove(Submission& submission, const PlanCache& plan) {
  forget(submission);
  if (const auto found = named_.find(submission.request.name());
      found != named_.end() && found->second.get() == &submission) {
    named_.erase(found);
    return;
  }
  if (!numbered(submission, plan)) return;
  const TensorNumber number = *plan.find(submission);
  const BucketId bucket = plan.row(number).bucket;
  take_numbered(number);
  State& state = buckets_[bucket];
  if (std::exchange(state.announced, false) && layout_matters(submission.request.signature)) open_.push_back(bucket);
  if (--state.submitted == 0) buckets_.erase(bucket);
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
  waited_for_.clear();
  withdrawing_.clear();
  return taken;
}

std::vector<SubmissionPtr> Outstanding::take_forgotten(std::span<const TensorNumber> tensors,
                                                       std::vector<SubmissionPtr>& gone) {
  std::vector<SubmissionPtr> taken;
  for (TensorNumber number : tensors) {
    if (waits(number)) taken.push_back(take_numbered(number));
  }
  for (auto& [name, submission] : std::exchange(named_, {})) taken.push_back(std::move(submission));
  std::ranges::sort(taken, {}, [](const SubmissionPtr& submission) { return submission->queued.sequence; });
  return voided(std::move(taken), gone);
}

/// What is to be added again, of submissions that were announced in vain.
std::vector<SubmissionPtr> Outstanding::voided(std::vector<SubmissionPtr> submissions,
                                               std::vector<SubmissionPtr>& gone) {
  std::vector<SubmissionPtr> taken;
  for (SubmissionPtr& submission : submissions) {
    const bool withdrawing = std::ranges::find(withdrawing_, submission) != withdrawing_.end();
    if (withdrawing) forget(*submission);
    (withdrawing ? gone : taken).push_back(std::move(submission));
  }
  return taken;
}

std::optional<SplitBucket> Outstanding::split_for(Submission& submission, const PlanCache& plan) {
  if (numbered(submission, plan)) {
    if (layout_matters(submission.request.signature)) return std::nullopt;
    return part_of(plan.row(*plan.find(submission)).bucket, plan, submission.pending.flushed_at);
  }
  const auto shapes = plan.numbers(submission.request.name());  // those of several are never fused
  if (shapes.size() != 1) return std::nullopt;
  const BucketId bucket = plan.row(shapes[0]).bucket;
  if (plan.members(bucket)->size() == 1) return std::nullopt;
  return SplitBucket{bucket, {shapes[0]}};
}

std::optional<SplitBucket> Outstanding::part_of(BucketId bucket, const PlanCache& plan, std::uint64_t until) {
  const auto found = buckets_.find(bucket);
  if (found == buckets_.end() || found->second.announced || found->second.split_asked) return std::nullopt;
  SplitBucket split{bucket, {}};
  for (TensorNumber number : *plan.members(bucket)) {
    if (waits(number) && numbered_[number]->queued.sequence <= until) split.members.push_back(number);
  }
  found->second.split_asked = true;
  return split;
}

std::vector<BucketId> Outstanding::awaited(const PlanCache& plan) const {
  std::vector<BucketId> result;
  for (const SubmissionPtr& submission : waited_for_) {
    if (!numbered(*submission, plan)) continue;
    const BucketId bucket = plan.row(*plan.find(*submission)).bucket;
    if (announced(bucket) && plan.members(bucket)->size() > 1 && std::ranges::find(result, bucket) == result.end())
      result.push_back(bucket);
  }
  return result;
}

std::vector<SplitBucket> Outstanding::splits(const PlanCache& plan) {
  std::vector<SplitBucket> result;
  for (const SubmissionPtr& submission : waited_for_) {
    if (auto split = split_for(*submission, plan)) result.push_back(std::move(*split));
  }
  return result;
}

std::optional<Retract> Outstanding::withdraw(const SubmissionPtr& submission, const PlanCache& plan) {
  Retract what;
  if (numbered(*submission, plan)) {
    what.bucket = plan.row(*plan.find(*submission)).bucket;
    if (!announced(*what.bucket)) {
      remove(*submission, plan);
      return std::nullopt;
    }
  } else {
    what.name = submission->request.name();
  }
  withdrawing_.push_back(submission);
  return what;
}

template <class Meant>
std::vector<SubmissionPtr> Outstanding::take_withdrawn(const PlanCache& plan, Meant&& meant) {
  std::vector<SubmissionPtr> taken;
  for (const SubmissionPtr& submission : withdrawing_) {
    if (meant(*submission)) taken.push_back(submission);
  }
  for (const SubmissionPtr& submission : taken) remove(*submission, plan);
  return taken;
}

std::vector<SubmissionPtr> Outstanding::withdrawn(const Retract& what, const PlanCache& plan) {
  return take_withdrawn(plan, [&](Submission& submission) {
    const bool by_number = numbered(submission, plan);
    return what.bucket ? by_number && plan.row(*plan.find(submission)).bucket == *what.bucket
                       : !by_number && submission.request.name() == what.name;
  });
}

std::vector<SubmissionPtr> Outstanding::withdrawn_from(BucketId first_new, const PlanCache& plan) {
  return take_withdrawn(plan, [&](Submission& submission) {
    return numbered(submission, plan) && plan.row(*plan.find(submission)).bucket >= first_new;
  });
}

SubmissionPtr Outstanding::find(TensorNumber number) const {
  return waits(number) ? numbered_[number] : nullptr;
}

SubmissionPtr Outstanding::find(const std::string& name, const PlanCache& plan) const {
  if (const auto found = named_.find(name); found != named_.end()) return found->second;
  for (TensorNumber number : plan.numbers(name)) {
    if (waits(number)) return numbered_[number];
  }
  return nullptr;
}

std::vector<SubmissionPtr> Outstanding::all() const {
  std::vector<SubmissionPtr> result;
  for (const SubmissionPtr& submission : numbered_) {
    if (submission) result.push_back(submission);
  }
  for (const auto& [name, submission] : named_) result.push_back(submission);
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a->queued.sequence < b->queued.sequence; });
  return result;
}

bool Outstanding::incomplete() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const auto& entry) { return entry.second.submitted > 0 && !entry.second.announced; });
}

Ready Outstanding::ready(BucketId bucket, int rank, const PlanCache& plan) const {
  Ready message{bucket, {}};
  for (TensorNumber number : *plan.members(bucket)) {
    const SubmissionPtr submission = find(number);
    if (!submission) continue;
    const Pending& mine = submission->pending;
    const auto& all = plan.row(number).sizes;
    const auto last = all.find(rank);
    const bool as_before = mine.sizes.empty() || (last != all.end() && last->second == mine.sizes);
    if (!as_before || mine.objection) message.sizes.push_back({number, {rank}, mine.sizes, mine.objection.optional()});
  }
  return message;
}

bool Outstanding::has_part(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && !found->second.announced && !found->second.split_asked;
}

bool Outstanding::announced(BucketId bucket) const {
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && found->second.announced;
}

}  // namespace kolo
