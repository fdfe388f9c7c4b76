#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/negotiation/plan_cache.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// Learns buckets from what the program on the root rank does: a run is what it submits between two waits. Training
/// repeats itself, so the tensors of a run, in the order of submission, are planned into buckets by fuse(); those that
/// have no number yet get one. What is new is held back while its run is open, so that it is fused the first time
/// already.
///
/// Each distinct run is planned when it is seen for the first time. If a rank waits or polls in the middle of it, its
/// cut splits the bucket for the time being: after 8 more runs of the kind, then 16, what was cut is fused again, but
/// not what would wait for something else again.
///
/// Of tensors whose layout_matters() nothing is held back, and a run is planned only when the program submits something
/// after it has waited for all of the run's tensors: then none of them is on its way through a bucket of the old plan.
/// So what is new runs alone the first time, and is fused from the next one on.
class PlanLearner {
 public:
  /// `of_layouts`: of tensors whose layout_matters(), and of no others.
  explicit PlanLearner(std::int64_t fusion_bytes, bool of_layouts = false)
      : fusion_bytes_(fusion_bytes), of_layouts_(of_layouts) {}

  /// `is_new`: it has no number yet.
  void submitted(const SubmissionPtr& submission, bool is_new);

  /// The root's program waits for something: the run ends here.
  void waited();

  /// The program waits for this one, or polls it.
  void looked(const std::string& name) { unseen_.erase(name); }
  bool all_looked_at() const { return unseen_.empty(); }

  /// Whether the name is new, and belongs to the run that has not ended.
  bool in_open_run(const std::string& name) const { return open_names_.contains(name); }
  std::size_t length_of_run() const { return run_.size(); }
  /// A bucket of these was incomplete on some rank while its program waited for something else: the ranks may submit
  /// them in different orders.
  void keep_apart(const std::vector<TensorNumber>& tensors) { apart_.insert(tensors.begin(), tensors.end()); }
  /// The ranks have forgotten some tensors, whose numbers will mean others.
  void forget() {
    planned_.clear();
    apart_.clear();
  }
  /// How many runs have ended.
  std::uint64_t runs() const { return runs_; }

  /// Whether propose() has a run to look at.
  bool run_ended() const { return !finished_.empty(); }

  /// The next change of the plan that follows from a finished run; nothing if the plan is right as it is.
  std::optional<Replan> propose(const PlanCache& plan);

 private:
  using RunOfSubmissions = std::vector<SubmissionPtr>;

  static constexpr std::size_t max_runs_remembered = 4096;
  static constexpr int longest_patience = 16;
  static constexpr std::size_t longest_run = 1 << 16;  // a program that never waits is planned in pieces of this length

  std::optional<Replan> plan_run(const RunOfSubmissions& run, const PlanCache& plan);

  static constexpr std::size_t most_unplanned = 64;  // of a program that always has something in flight

  std::int64_t fusion_bytes_;
  bool of_layouts_;
  std::unordered_set<std::string> unseen_;  // submitted, and the program has not looked at it, if layouts matter
  RunOfSubmissions run_;
  std::uint64_t runs_ = 0;
  std::unordered_set<std::string> open_names_;  // of what is new in run_
  std::list<RunOfSubmissions> unplanned_;       // finished, while something may be in flight, if layouts matter
  std::vector<RunOfSubmissions> finished_;
  struct Known {
    int runs = 0;  // since it was planned, or looked at
    int patience = 8;
  };
  std::unordered_map<std::uint64_t, Known> planned_;  // by hash of the run
  std::unordered_set<TensorNumber> apart_;            // are not fused again
};

}  // namespace kolo
