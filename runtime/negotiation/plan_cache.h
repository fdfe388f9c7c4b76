#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kolo/detail/hash.h>

#include "runtime/negotiation/messages.h"

namespace kolo {

struct Submission;

/// What all ranks of a group have agreed on so far: the tensors' numbers and the buckets they are planned into.
///
/// A replica: every rank applies the same decisions in the same order and so holds the same state. Names are announced
/// once; afterwards a tensor is its number, and a bucket its id.
class PlanCache {
 public:
  struct Row {
    std::string name;
    Signature signature;
    BucketId bucket = 0;
    bool ambiguous = false;  ///< the name has other signatures too; such a tensor is never fused
    std::map<int, std::vector<std::int64_t>> sizes{};  ///< of what has_rows(): by session rank, as of the last run
  };

  /// Applies Define: the tensor's number. Its bucket holds it alone.
  TensorNumber define(std::string name, const Signature& signature);

  /// Applies Replan. Returns the ids of the retired buckets; new ids count on from next_bucket().
  std::vector<BucketId> regroup(const Replan& record);

  /// Applies Reject: every bucket with a tensor of this name is retired, so that announcements of it that are still on
  /// their way count nowhere. Returns the ids of the retired buckets.
  std::vector<BucketId> isolate(std::string_view name);

  /// Applies the sizes of a Run.
  void set_sizes(const SizesOfRanks& news);

  /// The sizes that these ranks had in the last run, for a full announcement.
  std::vector<SizesOfRanks> sizes_of(TensorNumber number, const RankSet& ranks) const;

  /// All ranks' sizes of a tensor, by place in `ranks`: those in `news`, else those of the last run.
  std::vector<std::vector<std::int64_t>> sizes_by_rank(TensorNumber number, const std::vector<int>& ranks,
                                                       const std::vector<SizesOfRanks>& news) const;

  std::optional<TensorNumber> find(std::string_view name, const Signature& signature) const;
  /// The same of a submission, which remembers it: numbers are never taken back.
  std::optional<TensorNumber> find(Submission& submission) const;
  /// All numbers of a name: one for each signature it has been used with.
  std::span<const TensorNumber> numbers(std::string_view name) const;

  bool known(TensorNumber number) const { return number < rows_.size(); }
  TensorNumber next_number() const { return static_cast<TensorNumber>(rows_.size()); }
  const Row& row(TensorNumber number) const { return rows_[number]; }

  /// The tensors of a bucket in the plan's order; null if there is no such bucket, or no longer.
  const std::vector<TensorNumber>* members(BucketId bucket) const;
  BucketId next_bucket() const { return next_bucket_; }

 private:
  std::vector<Row> rows_;  // by tensor number
  std::unordered_map<std::string, std::vector<TensorNumber>, detail::StringHash, std::equal_to<>> numbers_;
  std::unordered_map<BucketId, std::vector<TensorNumber>> buckets_;
  BucketId next_bucket_ = 0;
};

}  // namespace kolo
