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
/// A name announced in full completes together with announcements of the same name by number: a child that believes in
/// the old shape has announced a bucket, one with a new shape the name. If that bucket holds other tensors too, a cut
/// is asked for first, which isolates the name (and makes a child announce it that waits for those other tensors). A
/// name with several signatures is never fused, so that children which announce different ones also meet in its row.
class ReadyTable {
 public:
  struct News {
    std::vector<Ready> ready;             ///< complete buckets
    std::vector<Announcement> announced;  ///< complete names, variants of all children merged
    std::vector<SplitBucket> splits;      ///< buckets that must be split before a name can complete
  };
  enum class Retraction {
    done,       ///< the announcement is gone
    passed_on,  ///< it was complete here and is known above: ask there
    ignored,    ///< there is no such announcement: it was decided, or is void
  };
  /// Children to answer, and what each of them asked.
  using Answers = std::vector<std::pair<int, Retract>>;

  /// `subtrees[child]` holds the ranks below (and including) a child.
  explicit ReadyTable(std::vector<RankSet> subtrees) : subtrees_(std::move(subtrees)), excused_(subtrees_.size()) {}

  void announce(int child, const Announcement& announcement, const PlanCache& plan);
  void ready(int child, const Ready& record, const PlanCache& plan);
  Retraction retract(int child, const Retract& what, const PlanCache& plan);

  /// The answer to a retraction that was passed on.
  Answers retracted(const Retract& what, const PlanCache& plan);

  // Decisions that end announcements.

  /// The bucket is to run, if it `may` at once or every child has voted for it. Else a vote begins: the bucket is
  /// announced once more, also by those whose ranks have all joined. Returns whether it runs.
  bool run(BucketId bucket, bool may, const PlanCache& plan);
  /// Whether a vote on it goes on.
  bool votes(BucketId bucket) const {
    const auto found = buckets_.find(bucket);
    return found != buckets_.end() && found->second.vote;
  }
  void rejected(const std::string& name);
  void retired(const std::vector<BucketId>& buckets, const PlanCache& plan);
  /// This name and signature is getting a number: children that announced it in full will announce it anew.
  Answers defined(const std::string& name, const Signature& signature);
  /// Every full announcement is void: all are made anew.
  Answers forgot(const PlanCache& plan);

  /// Nobody waits for these ranks from now on.
  void joined(const RankSet& ranks, const PlanCache& plan);

  /// Whether take() would be empty.
  bool quiet() const { return news_.ready.empty() && news_.announced.empty() && news_.splits.empty(); }
  News take() { return std::exchange(news_, {}); }

  /// The name that a passed-on bucket was counted under, or "" if it was passed on as a bucket.
  std::string merged_into(BucketId bucket) const;

  /// Whether a child has announced the bucket.
  bool announced(BucketId bucket) const { return buckets_.contains(bucket); }
  /// Whether nothing is announced.
  bool idle() const { return buckets_.empty() && rows_.empty(); }

 private:
  struct Arrivals {
    std::vector<bool> from;  // by child; sized on first use
    int count = 0;
    bool passed_on = false;
    bool vote = false;        // of all, nobody is excused
    std::string merged_into;  // the row that counted these, if any
    Answers retractions;      // passed on, not answered yet
    std::vector<SizesOfRanks> sizes;
  };
  struct Row {
    std::string name;
    Arrivals arrivals;
    std::vector<Announcement> announced;  // by child; no variants: none
    std::vector<BucketId> splits_asked;
  };

  Row& row(const std::string& name);
  bool mark(Arrivals& arrivals, int child);
  void clear(Arrivals& arrivals, int child);
  bool everybody(const std::vector<bool>& from, bool vote = false) const;
  void check_bucket(BucketId bucket, Arrivals& arrivals, const PlanCache& plan);
  void check_buckets(const PlanCache& plan);
  void check_row(Row& row, const PlanCache& plan);
  void count_bucket(const Arrivals& arrivals, TensorNumber number, const PlanCache& plan, Announcement& into) const;
  void forget(int child, const Retract& what);
  void reopen(Arrivals& arrivals, Answers& answers);
  void forget_news(const std::string& name);
  void close_rows(const std::vector<TensorNumber>& members, const PlanCache& plan);

  std::vector<RankSet> subtrees_;
  RankSet joined_;
  std::vector<bool> excused_;  // by child: all its ranks have joined
  std::unordered_map<BucketId, Arrivals> buckets_;
  std::map<std::string, Row> rows_;
  News news_;
};

}  // namespace kolo
