#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kolo/detail/hash.h>

#include "runtime/negotiation/messages.h"

namespace kolo {

struct AgreedRows;
struct GroupInfo;
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
    bool known = false;      ///< the number is given
    bool ambiguous = false;  ///< the name has, or had, other signatures too; such a tensor is never fused
    std::map<int, std::vector<std::int64_t>> sizes{};  ///< of what has_rows(): by session rank, as of the last run
    std::shared_ptr<const AgreedRows> agreed{};        ///< what follows from them; null: not worked out
  };

  /// Applies Define: the tensor's number. Its bucket holds it alone. Full announcements of the name made before are
  /// void.
  TensorNumber define(std::string name, const Signature& signature);

  /// Applies Replan; throws Error{backend}, and changes nothing, if it is malformed. Returns the ids of the retired
  /// buckets; new ids count on from next_bucket().
  std::vector<BucketId> regroup(const Replan& record);

  /// Applies Reject: every bucket with a tensor of this name is retired, so that announcements of it that are still on
  /// their way count nowhere. Returns the ids of the retired buckets.
  std::vector<BucketId> isolate(std::string_view name);

  /// Applies Forget: full announcements made before are void, whatever their names. Returns the ids of the retired
  /// buckets, and adds the names of which nothing is known any more.
  std::vector<BucketId> forget(const Forget& message, std::vector<std::string>& names);

  /// Applies Expired: the same as Reject, and full announcements of the name made before are void.
  std::vector<BucketId> expire(const std::string& name);

  /// How many decisions have made announcements void.
  std::uint64_t epoch() const { return epoch_; }
  /// Whether a full announcement of this name, made in the epoch `known`, is void.
  bool voids(std::string_view name, std::uint64_t known) const;

  /// Applies the sizes of a Run.
  void set_sizes(const SizesOfRanks& news);

  /// What follows from them, for this rank of the group.
  const AgreedRows& agreed_rows(TensorNumber number, const GroupInfo& group, const std::vector<int>& absent);
  /// Whether an operation with these sizes runs as the last one did: nothing is new.
  bool as_before(TensorNumber number, const std::vector<SizesOfRanks>& news, const std::vector<int>& absent) const;

  /// All ranks' sizes of a tensor, by place in `ranks`: those in `news`, else those of the last run. Throws
  /// Error{backend} if one that is not `absent` has not as many as the tensor has.
  std::vector<std::vector<std::int64_t>> sizes_by_rank(TensorNumber number, const std::vector<int>& ranks,
                                                       const std::vector<SizesOfRanks>& news,
                                                       const std::vector<int>& absent) const;

  std::optional<TensorNumber> find(std::string_view name, const Signature& signature) const;
  /// The same of a submission, which remembers it until numbers are taken back.
  std::optional<TensorNumber> find(Submission& submission) const;
  /// All numbers of a name: one for each signature it has been used with.
  std::span<const TensorNumber> numbers(std::string_view name) const;

  /// Throws Error{backend} unless these are different tensors of the plan.
  void check(std::vector<TensorNumber> tensors) const;
  bool known(TensorNumber number) const { return number < rows_.size() && rows_[number].known; }
  /// The number that is given after `more` others have been.
  TensorNumber next_number(std::size_t more = 0) const;
  std::size_t size() const { return rows_.size() - free_.size(); }
  const Row& row(TensorNumber number) const { return rows_[number]; }

  /// The tensors of a bucket in the plan's order; null if there is no such bucket, or no longer.
  const std::vector<TensorNumber>* members(BucketId bucket) const;
  /// Those of a bucket that the ranks have agreed to run. Throws Error{backend} if there is none, or the rows of one
  /// are not known.
  const std::vector<TensorNumber>& to_run(BucketId bucket, const GroupInfo& group, const std::vector<int>& absent);
  BucketId next_bucket() const { return next_bucket_; }

 private:
  struct Name {
    std::vector<TensorNumber> numbers;
    std::uint64_t voided = 0;  // the epoch that the last decision began that made its full announcements void
    bool expired = false;      // ranks may be late for an old operation
  };

  std::vector<Row> rows_;           // by tensor number
  std::vector<TensorNumber> free_;  // those that were taken back; the last one is given next
  std::unordered_map<std::string, Name, detail::StringHash, std::equal_to<>> names_;
  std::uint64_t epoch_ = 0;
  std::uint64_t forgotten_ = 0;  // the epoch that the last one began
  std::unordered_map<BucketId, std::vector<TensorNumber>> buckets_;
  BucketId next_bucket_ = 0;
};

}  // namespace kolo
