#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/plan_cache.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// This rank's side of a group's negotiation: what the program has submitted and the ranks have not agreed to run yet.
///
/// A tensor the plan knows waits under its number until its whole bucket is here; one it does not know waits under its
/// name. A bucket whose layout_matters() is here when all of it was submitted in one run, between two waits of the
/// program; else it is to be split where the program waited: so each rank insists on its own waits, and what runs is
/// what no rank's waits part, whichever comes first.
class Outstanding {
 public:
  /// Files a submission. Returns its bucket if that is now complete here (all members submitted) and must be announced,
  /// or nothing. A tensor unknown to the plan is filed under its name: announce it in full.
  std::optional<BucketId> add(const SubmissionPtr& submission, const PlanCache& plan);

  /// Whether the submission waits under its number.
  bool numbered(Submission& submission, const PlanCache& plan) const;

  /// Whether the submission waits here at all.
  bool holds(Submission& submission, const PlanCache& plan) const;

  /// Applies Define: what waited under this name and signature waits under its number from now on, announced. Takes
  /// what waited under another signature, to be added again; `gone` receives it if it is being withdrawn.
  std::vector<SubmissionPtr> defined(TensorNumber number, const PlanCache& plan, std::vector<SubmissionPtr>& gone);

  /// Applies a change of plan: forgets what was announced of retired buckets and returns the new ones that are complete
  /// here.
  std::vector<BucketId> regrouped(const std::vector<BucketId>& retired, BucketId first_new, const PlanCache& plan);

  /// Takes the members of an agreed bucket out, in the plan's order. Throws Error{backend} if one is not here.
  std::vector<SubmissionPtr> take(BucketId bucket, const PlanCache& plan);
  /// Takes the members of buckets that are new, as far as they are here.
  void take_from(BucketId first_new, const PlanCache& plan);
  /// Takes what waits under this name, by name or by number.
  std::vector<SubmissionPtr> take(const std::string& name, const PlanCache& plan);
  /// Takes everything.
  std::vector<SubmissionPtr> take_all();
  /// Before the plan forgets these: takes what waits under their numbers, or under a name, to be added again. `gone`
  /// receives what is being withdrawn.
  std::vector<SubmissionPtr> take_forgotten(std::span<const TensorNumber> tensors, std::vector<SubmissionPtr>& gone);

  // What the program waits for.

  /// The program waits for it: its bucket may have to be split.
  void wait_for(const SubmissionPtr& submission) { waited_for_.push_back(submission); }
  bool program_waits() const { return !waited_for_.empty(); }

  /// The split that lets `submission` run without the missing members of its bucket, if it waits for any and the split
  /// has not been asked for: the members submitted before it was first waited for. Of what waits under its name: the
  /// split that lets ranks announce another shape of it without the missing members of that one's bucket.
  std::optional<SplitBucket> split_for(Submission& submission, const PlanCache& plan);
  /// The split that lets those members of a bucket run that wait here and were submitted `until` then, if it is
  /// incomplete here and the split has not been asked for.
  std::optional<SplitBucket> part_of(BucketId bucket, const PlanCache& plan,
                                     std::uint64_t until = std::numeric_limits<std::uint64_t>::max());
  /// The announced buckets of several tensors that the program waits for.
  std::vector<BucketId> awaited(const PlanCache& plan) const;
  /// The splits of buckets whose layout_matters() and that the program's waits part; `run`: how many waits there were.
  std::vector<SplitBucket> parted(std::uint64_t run, const PlanCache& plan);
  /// The splits for all that the program waits for.
  std::vector<SplitBucket> splits(const PlanCache& plan);

  // What the program withdraws.

  /// Takes a submission back at once, and returns nothing, if it has not been announced; else returns what the tree is
  /// to be asked, and keeps the submission until the answer.
  std::optional<Retract> withdraw(const SubmissionPtr& submission, const PlanCache& plan);
  /// The answer: takes what it means.
  std::vector<SubmissionPtr> withdrawn(const Retract& what, const PlanCache& plan);
  /// After a change of plan: takes what is being withdrawn from buckets that are new.
  std::vector<SubmissionPtr> withdrawn_from(BucketId first_new, const PlanCache& plan);

  /// What waits under this number; null if nothing does.
  SubmissionPtr find(TensorNumber number) const;
  /// What waits under this name, by name or by number.
  SubmissionPtr find(const std::string& name, const PlanCache& plan) const;
  /// What waits at all.
  std::vector<SubmissionPtr> all() const;

  bool announced(BucketId bucket) const;
  /// Whether a part of it is here, and its split has not been asked for.
  bool has_part(BucketId bucket) const;
  /// A bucket that is complete here, with those sizes of this rank that are not the last run's.
  Ready ready(BucketId bucket, int rank, const PlanCache& plan) const;
  /// Whether a bucket waits here for more of its tensors.
  bool incomplete() const;
  bool empty() const { return numbered_count_ == 0 && named_.empty(); }

 private:
  struct State {
    std::size_t submitted = 0;
    bool announced = false;
    bool split_asked = false;
  };

  State& state_of(BucketId bucket);
  bool complete(BucketId bucket, const State& state, const PlanCache& plan) const;
  std::vector<TensorNumber> oldest_run(BucketId bucket, std::uint64_t& run, const PlanCache& plan) const;
  SubmissionPtr& at(TensorNumber number);
  bool waits(TensorNumber number) const { return number < numbered_.size() && numbered_[number]; }
  SubmissionPtr take_numbered(TensorNumber number);
  std::vector<SubmissionPtr> voided(std::vector<SubmissionPtr> submissions, std::vector<SubmissionPtr>& gone);
  void remove(Submission& submission, const PlanCache& plan);
  void forget(const Submission& submission);
  template <class Meant>
  std::vector<SubmissionPtr> take_withdrawn(const PlanCache& plan, Meant&& meant);

  std::vector<SubmissionPtr> numbered_;  // by number; null: does not wait
  std::size_t numbered_count_ = 0;
  std::unordered_map<std::string, SubmissionPtr> named_;
  std::unordered_map<BucketId, State> buckets_;           // of tensors that wait here
  std::unordered_map<BucketId, State>::node_type spare_;  // memory of a bucket that was taken, for the next one
  std::vector<BucketId> open_;              // maybe to be split: not announced, and their layout matters; or gone since
  std::vector<SubmissionPtr> waited_for_;   // by the program
  std::vector<SubmissionPtr> withdrawing_;  // announced; the tree is asked to take them back
};

}  // namespace kolo
