#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <kolo/error.h>
#include <kolo/op.h>

#include "runtime/control/wire.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// A tensor's number: given to a name and signature when the ranks have agreed on it for the first time, in agreed
/// order.
using TensorNumber = std::uint32_t;
/// A planned bucket: tensors that are announced and run together. Numbered in agreed order, never reused.
using BucketId = std::uint32_t;

/// What some ranks say of their own blocks of a tensor whose operation has_rows(); see block_sizes.h.
struct SizesOfRanks {
  TensorNumber tensor = 0;  ///< not where the tensor is named beside it
  RankSet ranks;
  std::vector<std::int64_t> sizes;
  friend bool operator==(const SizesOfRanks&, const SizesOfRanks&) = default;
};

// ---- what travels up the tree: announcements ------------------------------------------------------------------------

/// A tensor in full: its name, and what each rank of a subtree submitted under it (one variant unless they differ).
///
/// `known` is how many numbers had been given when it was made: if one of its variants has got a number since, it is
/// void, and made anew.
struct Announcement {
  struct Variant {
    Signature signature;
    std::optional<Failure> failure;  ///< set instead of a signature that can run
    RankSet ranks;
    friend bool operator==(const Variant&, const Variant&) = default;
  };
  std::string name;
  std::vector<Variant> variants;
  std::vector<SizesOfRanks> sizes{};
  TensorNumber known = 0;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

/// Every rank of the subtree has submitted every tensor of the bucket. Sizes are told where they are not those of the
/// last run.
struct Ready {
  BucketId bucket = 0;
  std::vector<SizesOfRanks> sizes{};
  friend bool operator==(const Ready&, const Ready&) = default;
};

/// Asks to split a bucket into these members and the rest, because somebody waits for these.
struct SplitBucket {
  BucketId bucket = 0;
  std::vector<TensorNumber> members;
  friend bool operator==(const SplitBucket&, const SplitBucket&) = default;
};

/// Takes back Ready of a bucket, or the announcement of a name (then `bucket` is unset).
struct Retract {
  std::optional<BucketId> bucket;
  std::string name;
  friend bool operator==(const Retract&, const Retract&) = default;
};

/// Somebody waits for a name that has no number yet.
struct Waiting {
  std::string name;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

/// These ranks have come to a monitored barrier.
struct BarrierArrived {
  std::string name;
  RankSet ranks;
  friend bool operator==(const BarrierArrived&, const BarrierArrived&) = default;
};

/// A rank's patience with a monitored barrier has ended, after so many seconds.
struct BarrierTimeout {
  std::string name;
  std::int32_t rank = 0;
  double seconds = 0;
  friend bool operator==(const BarrierTimeout&, const BarrierTimeout&) = default;
};

// ---- what travels in both directions --------------------------------------------------------------------------------

/// A rank leaves; `abandoned` if it did not wait for what it had in flight.
struct Left {
  std::int32_t rank = 0;
  bool abandoned = false;
  friend bool operator==(const Left&, const Left&) = default;
};

/// An agreed operation failed half-way: the group is of no more use.
struct GroupFailed {
  Failure failure;
  friend bool operator==(const GroupFailed&, const GroupFailed&) = default;
};

/// What runs on a device and has been agreed on before this fails; the group goes on. `number` counts the faults of the
/// group: of several reports of one, the first decides.
struct DeviceFault {
  Failure failure;
  std::uint64_t number = 0;
  friend bool operator==(const DeviceFault&, const DeviceFault&) = default;
};

/// A rank takes part in what the others submit from now on, with values that do not count, until all have joined.
struct Joined {
  std::int32_t rank = 0;
  friend bool operator==(const Joined&, const Joined&) = default;
};

// ---- what travels down the tree: decisions, applied by every rank in the same order
// ------------------------------------

/// Gives the next tensor number to this name and signature, and the next bucket number to a bucket of it alone.
/// Announcements of it in full are void.
struct Define {
  std::string name;
  Signature signature;
  friend bool operator==(const Define&, const Define&) = default;
};

/// Defines some tensors, then makes new buckets, numbered on: the old buckets of their tensors are retired, and what
/// was announced of those is void.
struct Replan {
  std::vector<std::vector<TensorNumber>> buckets;
  std::vector<Define> defined{};
  friend bool operator==(const Replan&, const Replan&) = default;
};

/// Run these buckets, in this order. Sizes are told where they are not those of the last run.
struct Run {
  std::vector<BucketId> buckets;
  std::vector<SizesOfRanks> sizes{};
  friend bool operator==(const Run&, const Run&) = default;
};

/// Every rank has submitted the name, and it fails.
struct Reject {
  std::string name;
  Failure failure;
  friend bool operator==(const Reject&, const Reject&) = default;
};

/// The end of a monitored barrier: all have come, or it failed.
struct BarrierDone {
  std::string name;
  std::optional<Failure> failure;
  friend bool operator==(const BarrierDone&, const BarrierDone&) = default;
};

/// Answers Retract, to the child that asked only.
struct Retracted {
  Retract what;
  friend bool operator==(const Retracted&, const Retracted&) = default;
};

using UpRecord = std::variant<Announcement, Ready, SplitBucket, Retract, Left, GroupFailed, Waiting, Joined,
                              BarrierArrived, BarrierTimeout, DeviceFault>;
using DownRecord =
    std::variant<Define, Replan, Run, Reject, Retracted, Left, GroupFailed, Joined, BarrierDone, DeviceFault>;

void encode(Writer& writer, const UpRecord& record);
void encode(Writer& writer, const DownRecord& record);

/// Throw Error{backend} on anything that no encode() wrote.
UpRecord decode_up(Reader& reader);
DownRecord decode_down(Reader& reader);

}  // namespace kolo
