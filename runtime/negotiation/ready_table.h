#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/negotiation/messages.h"
#include "runtime/negotiation/plan_cache.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// What one position in a group's tree knows of its subtree: which children have announced which buckets and names.
///
/// Child 0 is the rank itself, child i+1 its i-th neighbour below. Pure state: events go in, `take()` says what became
/// complete, that is announced by every child (but those whose ranks have all joined). What is complete is passed on
/// once: up the tree, or, at the root, to decisions.
///
/// All ranks announce a name by the same number, or all in full. What children announce in different ways never becomes
/// complete: that is a Conflict, which ends when the ranks forget the name's numbers, so that all announce it in full.
class ReadyTable {
 public:
  struct News {
    std::vector<Ready> ready;             ///< complete buckets
    std::vector<Announcement> announced;  ///< complete names, variants of all children merged
  };
  enum class Retraction {
    done,       ///< the announcement is gone
    passed_on,  ///< it was complete here and is known above: ask there
    ignored,    ///< there is no such announcement: it was decided, or is void
  };

  /// `subtrees[child]` holds the ranks below (and including) a child.
  explicit ReadyTable(std::vector<RankSet> subtrees) : subtrees_(std::move(subtrees)), excused_(subtrees_.size()) {}

  // What children announce. Return the names that another child has announced in another way.
  std::vector<Conflict> announce(int child, const Announcement& announcement, const PlanCache& plan);
  std::vector<Conflict> ready(int child, const Ready& record, const PlanCache& plan);

  Retraction retract(int child, const Retract& what);
  /// The answer to a retraction that was passed on. Returns the children that have asked.
  std::vector<int> retracted(const Retract& what);

  // Decisions that end announcements.

  /// The bucket is to run, if it `may` at once or every child has voted for it. Else a vote begins: the bucket is
  /// announced once more, also by those whose ranks have all joined. Returns whether it runs.
  bool run(BucketId bucket, bool may);
  /// Whether a vote on it goes on.
  bool votes(BucketId bucket) const {
    const auto found = buckets_.find(bucket);
    return found != buckets_.end() && found->second.vote;
  }
  void retired(const std::vector<BucketId>& buckets);
  /// Full announcements of this name are void.
  void voided(const std::string& name);
  /// All full announcements are void.
  void all_voided();

  /// Nobody waits for these ranks from now on.
  void joined(const RankSet& ranks);

  /// Whether take() would be empty.
  bool quiet() const { return news_.ready.empty() && news_.announced.empty(); }
  /// What has become complete since the last call; valid until the next one.
  News& take();

  /// Whether a child has announced the bucket.
  bool announced(BucketId bucket) const { return buckets_.contains(bucket); }
  /// Whether nothing is announced.
  bool idle() const { return buckets_.empty() && names_.empty(); }

 private:
  struct Arrivals {
    std::vector<bool> from;  // by child; empty until the first
    int count = 0;
    bool passed_on = false;
    bool vote = false;             // of all, nobody is excused
    std::vector<int> retractions;  // children whose questions were passed on, and are not answered yet
    std::vector<SizesOfRanks> sizes;
    std::vector<Announcement::Variant> variants;  // of a name
    RankSet others;                               // of a name
  };

  Arrivals& at(BucketId bucket);
  bool mark(Arrivals& arrivals, int child);
  bool complete(const Arrivals& arrivals) const;
  void check(BucketId bucket, Arrivals& arrivals);
  void check(const std::string& name, Arrivals& arrivals);
  bool in_conflict(const std::string& name, const PlanCache& plan) const;
  Arrivals* find(const Retract& what);
  void clear(const Retract& what, int child);

  std::vector<RankSet> subtrees_;
  std::vector<bool> excused_;  // by child: all its ranks have joined
  std::unordered_map<BucketId, Arrivals> buckets_;
  std::unordered_map<BucketId, Arrivals>::node_type spare_;  // memory of a bucket that ran, for the next one
  std::map<std::string, Arrivals> names_;                    // announced in full
  News news_, taken_;
};

}  // namespace kolo
