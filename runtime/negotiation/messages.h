#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <kolo/error.h>
#include <kolo/op.h>

#include "runtime/control/wire.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// A tensor's number: given to a name and signature when the ranks have agreed on it for the first time, in agreed
/// order, and taken back when they forget it.
using TensorNumber = std::uint32_t;
/// A planned bucket: tensors that are announced and run together. Numbered in agreed order, never reused.
using BucketId = std::uint32_t;

/// A message, or a part of one: `fields()` lists its members once, and encoding, decoding and comparing go through
/// them.
template <class T>
concept HasFields = requires(const T& of) {
  T::fields(of);
};

template <HasFields T>
bool operator==(const T& a, const T& b) {
  return T::fields(a) == T::fields(b);
}

/// What some ranks say of their own blocks of a tensor whose operation has_rows(), see block_sizes.h; or, of any tensor
/// that they announce by number, why they cannot run it.
struct SizesOfRanks {
  TensorNumber tensor = 0;  ///< not where the tensor is named beside it
  RankSet ranks;
  std::vector<std::int64_t> sizes;
  std::optional<Failure> failure{};
  static auto fields(auto& of) { return std::tie(of.tensor, of.ranks, of.sizes, of.failure); }
};

// ---- what travels up the tree: announcements ------------------------------------------------------------------------

/// A tensor in full: its name, and what each rank of a subtree submitted under it (one variant unless they differ).
///
/// `known` is the plan's epoch when it was made: see PlanCache::voids(). `others`: ranks that submitted something else
/// again; so what is sent does not grow with the number of ranks where all differ.
struct Announcement {
  struct Variant {
    Signature signature;
    std::optional<Failure> failure;  ///< set instead of a signature that can run
    RankSet ranks;
    static auto fields(auto& of) { return std::tie(of.signature, of.failure, of.ranks); }
  };
  std::string name;
  std::vector<Variant> variants;
  std::vector<SizesOfRanks> sizes{};
  std::uint64_t known = 0;
  RankSet others{};
  static auto fields(auto& of) { return std::tie(of.name, of.variants, of.sizes, of.known, of.others); }
};

/// Every rank of the subtree has submitted every tensor of the bucket. Sizes are given where they are not those of the
/// last run, and failures.
struct Ready {
  BucketId bucket = 0;
  std::vector<SizesOfRanks> sizes{};
  static auto fields(auto& of) { return std::tie(of.bucket, of.sizes); }
};

/// Asks to split a bucket into these members and the rest, because a rank waits for these.
struct SplitBucket {
  BucketId bucket = 0;
  std::vector<TensorNumber> members;
  bool standstill = false;  ///< it was incomplete while the program waited for something else
  static auto fields(auto& of) { return std::tie(of.bucket, of.members, of.standstill); }
};

/// Takes back Ready of a bucket, or the announcement of a name (then `bucket` is unset).
struct Retract {
  std::optional<BucketId> bucket;
  std::string name;
  static auto fields(auto& of) { return std::tie(of.bucket, of.name); }
};

/// Ranks have announced the name in different ways: in full and by number, or by different numbers.
struct Conflict {
  std::string name;
  static auto fields(auto& of) { return std::tie(of.name); }
};

/// A rank waits for a name that has no number yet, in this epoch of the plan.
struct Waiting {
  std::string name;
  std::uint64_t known = 0;
  static auto fields(auto& of) { return std::tie(of.name, of.known); }
};

/// A rank has waited for an operation for `seconds`, its time-out. Said again and again, until it ends.
struct Overdue {
  std::string name;
  OpKind kind{};
  std::int32_t rank = 0;
  double seconds = 0;
  std::int32_t attempt = 1;
  bool running = false;  ///< the ranks have agreed to run it
  static auto fields(auto& of) { return std::tie(of.name, of.kind, of.rank, of.seconds, of.attempt, of.running); }
};

/// A rank's answer to WhoHas.
struct Presence {
  std::string name;
  std::int32_t rank = 0;
  bool here = false;     ///< has submitted it
  bool overdue = false;  ///< waits for it beyond its deadline
  std::uint64_t question = 0;
  std::string last{};  ///< where operations are matched by their order: the last that it has begun
  static auto fields(auto& of) { return std::tie(of.name, of.rank, of.here, of.overdue, of.question, of.last); }
};

/// What a rank has begun in a group whose operations are matched by their order, from number `first` on.
struct Described {
  struct One {
    std::uint64_t token = 0;
    std::string text;
    static auto fields(auto& of) { return std::tie(of.token, of.text); }
  };
  std::int32_t rank = 0;
  std::uint64_t first = 0;
  std::vector<One> operations;
  static auto fields(auto& of) { return std::tie(of.rank, of.first, of.operations); }
};

// ---- what travels in both directions --------------------------------------------------------------------------------

/// A rank leaves; `abandoned` if it did not wait for what it had in flight. `begun`: where operations are matched by
/// their order, how many it has begun.
struct Left {
  std::int32_t rank = 0;
  bool abandoned = false;
  std::uint64_t begun = 0;
  static auto fields(auto& of) { return std::tie(of.rank, of.abandoned, of.begun); }
};

/// Up: a rank has found that another one called something else, in an operation from this number on. Down: so all say
/// what they have called.
struct Differs {
  std::uint64_t number = 0;
  static auto fields(auto& of) { return std::tie(of.number); }
};

/// A rank is gone, in words that say how. Whoever hears it the first time tells all its neighbours: the root may be the
/// one that is gone.
struct Gone {
  std::int32_t rank = 0;
  std::string text;
  static auto fields(auto& of) { return std::tie(of.rank, of.text); }
};

/// An agreed operation failed half-way: the group is of no more use.
struct GroupFailed {
  Failure failure;
  static auto fields(auto& of) { return std::tie(of.failure); }
};

/// What runs on a device and has been agreed on before this fails; the group goes on. `number` counts the faults of the
/// group: of several reports of one, the first decides.
struct DeviceFault {
  Failure failure;
  std::uint64_t number = 0;
  static auto fields(auto& of) { return std::tie(of.failure, of.number); }
};

/// A rank is about to launch work of another group on its device, for the first time; of several reports the first
/// counts. What the group launches from then on has to agree with that work on an order.
struct SharesDevice {
  std::int32_t rank = 0;
  static auto fields(auto& of) { return std::tie(of.rank); }
};

/// Up: a rank has waited for this bucket for long. Down: so the ranks that have a part of it are to split it.
struct Awaited {
  BucketId bucket = 0;
  std::int32_t rank = 0;
  static auto fields(auto& of) { return std::tie(of.bucket, of.rank); }
};

/// A rank takes part in what the others submit from now on, with values that do not count, until all have joined.
struct Joined {
  std::int32_t rank = 0;
  static auto fields(auto& of) { return std::tie(of.rank); }
};

// ---- what travels down the tree: decisions, applied by every rank in the same order
// -----------------------------------

/// Gives the next tensor number to this name and signature, and the next bucket number to a bucket of it alone.
/// Announcements of the name in full are void: whoever has announced another signature does so anew.
struct Define {
  std::string name;
  Signature signature;
  static auto fields(auto& of) { return std::tie(of.name, of.signature); }
};

/// Defines some tensors, then makes new buckets, numbered on: the old buckets of their tensors are retired, and what
/// was announced of those is void.
struct Replan {
  std::vector<std::vector<TensorNumber>> buckets;
  std::vector<Define> defined{};
  static auto fields(auto& of) { return std::tie(of.buckets, of.defined); }
};

/// Run these buckets, in this order. Holds the sizes that are not those of the last run.
struct Run {
  std::vector<BucketId> buckets;
  std::vector<SizesOfRanks> sizes{};
  static auto fields(auto& of) { return std::tie(of.buckets, of.sizes); }
};

/// Every rank has submitted the name, and it fails.
struct Reject {
  std::string name;
  Failure failure;
  static auto fields(auto& of) { return std::tie(of.name, of.failure); }
};

/// Every rank says whether it has submitted this operation.
struct WhoHas {
  std::string name;
  std::uint64_t question = 0;  ///< the number of this one, which answers repeat
  static auto fields(auto& of) { return std::tie(of.name, of.question); }
};

/// An operation that not every rank has submitted fails, on the others when they submit it. Announcements of the name
/// are void.
struct Expired {
  std::string name;
  Failure failure;
  static auto fields(auto& of) { return std::tie(of.name, of.failure); }
};

/// The plan no longer holds these tensors, because there are too many or their names are in conflict: their numbers are
/// given to others, and they are announced in full by all who have them, or when they come back. Full announcements
/// that were made before are void, whatever their names, so that nothing needs to be remembered of names that are gone.
struct Forget {
  std::vector<TensorNumber> tensors;
  bool in_conflict = false;  ///< the names are in use
  static auto fields(auto& of) { return std::tie(of.tensors, of.in_conflict); }
};

/// Answers Retract, to the child that asked only.
struct Retracted {
  Retract what;
  static auto fields(auto& of) { return std::tie(of.what); }
};

using UpMessage = std::variant<Announcement, Ready, SplitBucket, Retract, Left, GroupFailed, Waiting, Joined, Overdue,
                               Presence, DeviceFault, Awaited, Conflict, SharesDevice, Gone, Differs, Described>;
using DownMessage = std::variant<Define, Replan, Run, Reject, Retracted, Left, GroupFailed, Joined, WhoHas, Expired,
                                 Forget, DeviceFault, Awaited, SharesDevice, Gone, Differs>;

void encode(Writer& writer, const UpMessage& message);
void encode(Writer& writer, const DownMessage& message);

/// Throw Error{backend} on anything that no encode() wrote.
UpMessage decode_up(Reader& reader);
DownMessage decode_down(Reader& reader);

}  // namespace kolo
