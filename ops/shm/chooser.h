#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/shm/choice.h"

namespace kolo {

/// Ways that are best, of groups of one number of ranks.
using ShmTable = std::map<std::pair<ShmClass, ShmPlace>, ShmChoice>;

/// What is known before the first job, the same on all ranks.
struct ShmKnown {
  std::optional<ShmWay> forced{};    ///< of all jobs that can go it; the others go through the ring
  bool measures = false;             ///< what the tables say is found out again
  std::map<int, ShmTable> tables{};  ///< by the number of a group's ranks
};

/// Finds out by measuring which way is best for the large jobs of a group, class by class.
///
/// The first jobs of a class are trials: they travel by one candidate after the other, a few rounds of all that are
/// left. Which that is all ranks know, since each says with its next job when the last trial began and ended there:
/// from the last begin to the last end is the trial's time, whoever came early. What a candidate costs beside moving
/// bytes is in it: jobs that are read or mapped ask before each one, so the time begins when they do; jobs of the ring
/// do not, and run into each other, so a job goes by the ring before each trial of it. Candidates that are clearly
/// slower are dropped after each round, so that trials cost little; the rest is compared by medians. Then the class is
/// settled. A change of place (a job whose tensors others can map, say) has trials of its own.
///
/// Trials may cost 3 % of the first 200 jobs of a class. The next one waits until, with it, they are 3 % of all its
/// jobs; what the first of a way costs is guessed.
///
/// Pure: no clock, no memory that ranks share. Each rank of a group has one, and calls it for the same jobs in the same
/// order, with the same answers.
class ShmChooser final {
 public:
  /// When a trial ran, by the clock that the ranks of a node have together.
  struct Period {
    std::chrono::steady_clock::time_point begun{}, ended{};  ///< ended at the epoch: it is not complete

    bool complete() const { return ended != decltype(ended){}; }
    /// From the last begin to the last end; not complete unless both are.
    Period joined(const Period& other) const {
      if (!complete() || !other.complete()) return {};
      return {std::max(begun, other.begun), std::max(ended, other.ended)};
    }
  };

  /// What a rank says of a job, and what is true of all of them: the least reach; in-place if all are.
  struct Said {
    ShmPlace place;
    Period trial;  ///< the last one of the class
  };

  /// ring   bytes of the largest chunks in the ring: what is tried first, and where nothing is known
  /// ranks  of the group
  /// known  null: nothing
  ShmChooser(std::int64_t ring, int ranks, std::shared_ptr<const ShmKnown> known);

  /// Whether ranks are to show each other where the tensors of the next job lie. Called once for each job.
  bool asks(const ShmClass& of);
  struct Answer {
    ShmChoice choice;
    std::uint64_t trial = 0;  ///< its number; 0: it is none
    bool settled = true;      ///< which way is best
  };
  /// The way of a job that does not ask.
  Answer unasked(const ShmClass& of);

  /// For Said.
  Period last_trial(const ShmClass& of) const;
  /// The way of a job that asked.
  Answer answer(const ShmClass& of, const Said& all);
  /// A trial is complete on this rank.
  void complete(const ShmClass& of, std::uint64_t trial, const Period& period);

  /// The trial of a class that has not ended never will. Where nobody else has a chooser that must know.
  void forget_trial(const ShmClass& of) { classes_[of].trial_place.reset(); }

  /// What is settled by trials.
  ShmTable findings() const;

 private:
  // Jobs of a class that goes by the ring, of which one looks whether tensors lie elsewhere now: twice as many after
  // each that has found them where they were. Each asks, and takes a call of the system where they might be read.
  static constexpr int least_period = 32, largest_period = 1024;

  struct Candidate {
    ShmChoice choice;
    std::vector<float> seconds;  // of each trial
  };
  struct Contest {
    std::vector<Candidate> left;  // the first is the one to beat
    std::size_t next = 0;         // of these, in this round
    int rounds = 0;               // that are complete
    bool begun = false;           // the first job is none: it finds cold memory
    std::int64_t jobs = 0;
    float lost = 0;  // seconds, by what was dropped
    bool settled() const { return left.size() == 1; }
    /// The fastest so far; of none that was tried: the first.
    const Candidate& best() const;
    /// Seconds by which trials of one would have been shorter by the best.
    float cost(const Candidate& one, std::size_t trials) const;
  };
  struct Class {
    std::map<ShmPlace, Contest> contests;
    std::optional<ShmPlace> last;         // of the last job that asked
    int since_asked = 0;                  // jobs
    int period = least_period;            // see asks()
    std::optional<ShmPlace> trial_place;  // of the trial whose times are not known yet
    std::uint64_t trials = 0;
    Period trial;           // the last one, on this rank
    bool leads_in = false;  // the last job that asked goes by the ring before a trial of it
  };

  Contest& contest(const ShmClass& of, Class& one, ShmPlace place) const;
  static Answer begin_trial(Class& one, const Contest& contest);
  /// Whether its trials have cost so much that the next one has to wait.
  bool pauses(const ShmClass& of, const Contest& contest) const;
  std::vector<ShmChoice> candidates(const ShmClass& of, ShmPlace place) const;
  static void take(Contest& contest, const ShmClass& of, float seconds);

  std::int64_t ring_;
  bool pauses_ = true;
  std::optional<ShmWay> forced_;
  std::shared_ptr<const ShmTable> known_;  // null: nothing
  std::map<ShmClass, Class> classes_;
};

}  // namespace kolo
