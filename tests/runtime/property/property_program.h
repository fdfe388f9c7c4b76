#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kolo/error.h>
#include <kolo/op.h>

namespace kolo::testing {

/// What a rank calls.
enum class Call : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send_recv,
  barrier,
  monitored_barrier,
  broadcast_object,
  all_gather_object,
  join,
  new_group,
  split,
  remove_group,
  abandon_group
};

/// What is special about an operation, and who is to blame for it: PropertyOp::odd.
enum class Trouble : std::uint8_t {
  none,
  // It succeeds nevertheless.
  withdrawn,  ///< the odd rank submits it, drops its handle, and submits it again when that is gone; the others wait
              ///< for that
  raced,      ///< the odd rank drops its handle while the others submit, and submits it again if it was withdrawn
  duplicate,  ///< the odd rank submits the name twice, which throws in_flight; the others wait for that
  // ErrorCode::mismatch: the odd ranks submit something else.
  other_shape,
  other_dims,
  other_dtype,
  other_call,
  other_op,
  other_root,
  other_scale,
  other_divisor,
  other_priority,
  other_members,
  wrong_rows,
  // ErrorCode::invalid_argument: the odd rank's arguments cannot work.
  null_pointer,
  root_out_of_range,
  wrong_output,
  bad_splits,
  unfit_op,
  joined_root,
  joined_peer,
  // ErrorCode::backend: the odd rank has no memory, or says that it cannot do its part.
  no_memory,
  refuses,
  // ErrorCode::stalled: the odd rank does not come before the others have given up.
  late
};

inline constexpr Trouble last_harmless = Trouble::duplicate;

/// One tensor of an operation, as all ranks submit it.
struct PropertyTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> inner;  ///< extents; those after the rows where the operation has blocks
  std::vector<std::int64_t> rows;   ///< all_gather, gather: of each rank. all_to_all: from s to d at [s * ranks + d].
                                    ///< reduce_scatter, scatter: of the whole. Else empty
};

/// One operation of a program. Ranks are those of its group, but for `members`.
struct PropertyOp {
  int id = 0;  ///< unique within its program
  Call call = Call::all_reduce;
  std::string name;
  int group = 0;               ///< index in Program::groups
  int ranks = 1;               ///< of the group
  bool grouped = false;        ///< submitted together, by the grouped call
  bool in_order = false;       ///< the group matches it by its order, and it has no name
  bool makes_ordered = false;  ///< new_group, split: groups that match so
  std::vector<PropertyTensor> tensors;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  ///< the sender of send_recv; who joins
  int peer = 0;  ///< the receiver of send_recv
  double prescale = 1;
  double postscale = 1;
  bool divide_by_group = false;
  int priority = 0;
  std::uint64_t seed = 0;    ///< of values, and of how each rank calls it
  std::vector<int> absent;   ///< ranks that have joined, ascending
  std::vector<int> members;  ///< new_group: session ranks; split: the colour of each, then the key of each
  std::vector<int> made;     ///< new_group, split: the new groups, by ascending colour
  Trouble trouble = Trouble::none;
  std::vector<int> odd;           ///< ascending; abandon_group: who calls it
  std::vector<int> abandoned_by;  ///< the odd ranks of an abandon_group of its group, in the same step: it ends as it
                                  ///< does else, or with the group, on each rank for itself
  std::vector<int> any;  ///< send_recv by tag: its receive takes what comes first of these operations of the step,
                         ///< which go to the same rank; itself is one of them. Else empty

  /// A send_recv whose ranks both know a tag instead of a name.
  bool by_tag() const;
  bool fails() const { return trouble > last_harmless && !refused(); }
  /// In such a group bad arguments throw at once, and take no place: the odd ranks call it again as they should.
  bool refused() const { return in_order && trouble >= Trouble::null_pointer && trouble <= Trouble::unfit_op; }
  /// It is the last one of its group, which fails on every rank: there or at the next call.
  bool ends_group() const { return in_order && fails(); }
  bool is_absent(int rank) const;
  bool is_odd(int rank) const;
  bool takes_part(int rank) const;
};

/// Whether the operation has no handle: the caller waits in the call.
bool blocks(Call call);

/// Whether calls on all ranks match in their order, not by name: one thread of a rank makes them.
bool matches_in_order(Call call);

bool moves_tensors(Call call);
bool call_has_root(Call call);
bool call_reduces(Call call);

/// Whether all_reduce combines values of this type so.
bool suits(ReduceOp op, DType dtype);

/// The collective behind a call that moves tensors.
OpKind kind_of(Call call);

/// Operations that are in flight together.
struct PropertyStep {
  std::vector<PropertyOp> ops;
  bool ordered = true;           ///< each thread submits its part of them in this order, and may wait in between
  int joined_group = -1;         ///< the group whose ranks join one after another, in the order of `ops`
  std::vector<int> may_be_last;  ///< its ranks that may be the last to join
};

/// A rank's program ends by an exception before its first thread submits an operation.
struct Leave {
  int rank = 0;
  int after = 0;  ///< operations of that thread
};

/// What all ranks of a session do: a function of the seed.
struct PropertyProgram {
  std::uint64_t seed = 0;
  int ranks = 2;
  std::string fake_nodes;
  std::int64_t fusion_bytes = 64 << 20;
  std::int64_t spin_us = 0;
  std::vector<int> threads;              ///< that submit, on each rank
  std::vector<std::vector<int>> groups;  ///< session ranks by rank of the group; the world first
  std::vector<PropertyStep> steps;
  std::optional<Leave> leave{};  ///< not drawn
  std::string own_error{};       ///< not drawn: errors that say so may differ from rank to rank

  int operations() const;
};

/// Of 2 to 5 ranks; if `most_ranks` is more, one in five has up to that.
PropertyProgram draw_program(std::uint64_t seed, int most_ranks = 5);

/// "12: all_gather 't3' in group 1, f32[2], rows [1, 4], odd [0]: withdrawn".
std::string to_string(const PropertyOp& op);
/// A line for each operation.
std::string to_string(const PropertyProgram& program);

/// What an odd rank submits instead, where its trouble is something that must be equal on all ranks.
PropertyOp odd_version(const PropertyOp& op);

/// What the odd rank says instead of its part.
Failure refusal_of(const PropertyOp& op);

/// splitmix64 over a few numbers: draws that need no state.
std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0, std::uint64_t d = 0);

}  // namespace kolo::testing
