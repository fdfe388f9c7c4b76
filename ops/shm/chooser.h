#pragma once

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
/// left. Which that is all ranks know, since each says with its next job how long the last trial took it, and
/// the slowest counts. Candidates that are clearly slower are dropped after each round, so that trials cost little; the
/// rest is compared by medians. Then the class is settled. A change of place (a job whose tensors others can map, say)
/// has trials of its own.
///
/// Pure: no clock, no memory that ranks share. Each rank of a group has one, and calls it for the same jobs in the same
/// order, with the same answers.
class ShmChooser final {
 public:
  /// What a rank says of a job, and what is true of all of them: the least reach; in-place if all are; the longest
  /// time.
  struct Said {
    ShmPlace place;
    float seconds = 0;  ///< that the last trial of the class took; 0: it is not complete
  };

  /// ring   bytes of the largest chunks in the ring: what is tried first, and where nothing is known
  /// ranks  of the group
  /// known  null: nothing
  ShmChooser(std::int64_t ring, int ranks, std::shared_ptr<const ShmKnown> known);

  /// Whether ranks are to show each other where the tensors of the next job lie. Called once for each job.
  bool asks(const ShmClass& of);
  /// The way of a job that does not ask.
  ShmChoice unasked(const ShmClass& of) const;

  /// For Said.
  float seconds_of_trial(const ShmClass& of) const;
  struct Answer {
    ShmChoice choice;
    std::uint64_t trial = 0;  ///< its number; 0: it is none
    bool settled = true;      ///< which way is best
  };
  /// The way of a job that asked.
  Answer answer(const ShmClass& of, const Said& all);
  /// A trial is complete on this rank.
  void complete(const ShmClass& of, std::uint64_t trial, double seconds);

  /// The trial of a class that has not ended never will. Where nobody else has a chooser that must know.
  void forget_trial(const ShmClass& of) { classes_[of].trial_place.reset(); }

  /// What is settled by trials.
  ShmTable findings() const;

 private:
  struct Candidate {
    ShmChoice choice;
    std::vector<float> seconds;  // of each trial
  };
  struct Contest {
    std::vector<Candidate> left;  // the first is the one to beat
    std::size_t next = 0;         // of these, in this round
    int rounds = 0;               // that are complete
    bool begun = false;           // the first job is none: it finds cold memory
    bool settled() const { return left.size() == 1; }
  };
  struct Class {
    std::map<ShmPlace, Contest> contests;
    std::optional<ShmPlace> last;         // of the last job that asked
    int since_asked = 0;                  // jobs
    std::optional<ShmPlace> trial_place;  // of the trial whose times are not known yet
    std::uint64_t trials = 0;
    float seconds = 0;  // of the last trial, on this rank
  };

  Contest& contest(const ShmClass& of, Class& one, ShmPlace place) const;
  std::vector<ShmChoice> candidates(const ShmClass& of, ShmPlace place) const;
  static void take(Contest& contest, float seconds);

  std::int64_t ring_;
  std::optional<ShmWay> forced_;
  std::shared_ptr<const ShmTable> known_;  // null: nothing
  std::map<ShmClass, Class> classes_;
};

}  // namespace kolo
