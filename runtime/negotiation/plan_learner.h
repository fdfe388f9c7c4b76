#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/negotiation/fusion.h"
#include "runtime/negotiation/fusion_tuner.h"
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
///
/// Of other tensors the fusion threshold may be tuned, for one run at a time, and for a few in all: a FusionTuner is
/// told how long it takes from the beginning of a run to the next one of its kind, by when their first tensors were
/// submitted. The plan changes for it when a run begins and all tensors of the last one of that kind have been agreed
/// on, so that no bucket is cut by that. Every run keeps the threshold it was found to be fastest with; runs that were
/// not tuned have the one that was found last. A run that has tensors of a tuned one is tuned itself only if that one
/// does not come any more: else they would move each other's tensors.
class PlanLearner {
 public:
  /// What it learns about.
  enum class Of : std::uint8_t { others, others_tuned, layouts };

  /// `of`: tensors whose layout_matters(), or all others, whose threshold may be tuned from `fusion_bytes` downwards.
  explicit PlanLearner(std::int64_t fusion_bytes, Of of = Of::others)
      : largest_(fusion_bytes),
        fusion_bytes_(fusion_bytes),
        of_layouts_(of == Of::layouts),
        tunings_left_(of == Of::others_tuned ? 4 : 0) {}

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
    tuned_tensors_.clear();
    tuning_.reset();
  }
  /// How many runs have ended.
  std::uint64_t runs() const { return runs_; }

  /// Whether propose() has a run to look at.
  bool run_ended() const { return !finished_.empty() || (tuning_ && tuning_->may_change); }

  /// The next change of the plan that follows from a finished run; nothing if the plan is right as it is.
  std::optional<Replan> propose(const PlanCache& plan);

 private:
  using RunOfSubmissions = std::vector<SubmissionPtr>;

  static constexpr std::size_t max_runs_remembered = 4096;
  static constexpr int longest_patience = 16;
  static constexpr std::size_t longest_run = 1 << 16;  // a program that never waits is planned in pieces of this length

  struct Known {
    int runs = 0;  // since it was planned, or looked at
    int patience = 8;
    std::optional<std::int64_t> fusion_bytes{};  // if it was tuned
    bool may_be_tuned = true;
  };

  /// Of a run's threshold.
  struct Tuning {
    std::uint64_t run = 0;  // its hash
    FusionTuner tuner;
    std::int64_t in_use = 0;  // by the plan; 0: it may have been cut
    std::int64_t wanted = 0;
    std::int64_t of_step = 0;                       // what the last step used
    std::chrono::steady_clock::time_point began{};  // that step
    RunOfSubmissions last{};                        // of that step, until the plan is as wanted
    bool may_change = false;                        // another run has begun since
    int others = 0;                                 // that could be tuned have come since
  };

  std::optional<Replan> plan_run(RunOfSubmissions& run, const PlanCache& plan);
  std::vector<Fusible> fusible(const RunOfSubmissions& run, const PlanCache& plan, Replan& change) const;
  bool is_apart(const std::vector<Fusible>& tensors) const {
    return std::ranges::any_of(tensors, [this](const Fusible& one) { return apart_.contains(one.number); });
  }
  bool tune(std::uint64_t hash, Known& known, const std::vector<Fusible>& tensors, RunOfSubmissions& run);
  std::optional<Replan> change_threshold(const PlanCache& plan);

  static constexpr int most_others = 16, most_alike = 3;
  static constexpr std::size_t most_unplanned = 64;  // of a program that always has something in flight

  std::int64_t largest_;       // fusion threshold
  std::int64_t fusion_bytes_;  // of runs that were not tuned
  bool of_layouts_;
  std::unordered_set<std::string> unseen_;  // submitted, and the program has not looked at it, if layouts matter
  RunOfSubmissions run_;
  std::uint64_t runs_ = 0;
  std::unordered_set<std::string> open_names_;  // of what is new in run_
  std::list<RunOfSubmissions> unplanned_;       // finished, while something may be in flight, if layouts matter
  std::vector<RunOfSubmissions> finished_;
  std::unordered_map<std::uint64_t, Known> planned_;  // by hash of the run
  std::unordered_set<TensorNumber> apart_;            // are not fused again
  int tunings_left_;
  std::unordered_set<TensorNumber> tuned_tensors_;  // of runs that were tuned
  int alike_ = 0;                                   // runs with such tensors, since one that was tuned
  std::optional<Tuning> tuning_;
};

}  // namespace kolo
