#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/device.h>
#include <kolo/dtype.h>
#include <kolo/tensor.h>

namespace kolo {

/// The collectives. The numeric values are part of the wire format: append only.
///
/// barrier, open_group (a group's first, which the runtime submits itself), remove_group and join are agreed on like
/// any other operation but move no data. send_recv stands for send() and recv(): an operation of two ranks, of which
/// the root sends.
enum class OpKind : std::uint8_t {
  all_reduce,
  broadcast,
  barrier,
  open_group,
  remove_group,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  join,
  send_recv
};

/// The rows of a collective's tensor that the input, or the output, of one rank holds.
enum class Rows : std::uint8_t {
  none,    ///< no data
  whole,   ///< a tensor of the same shape on every rank
  dealt,   ///< this rank's rows of such a tensor, see rows_of_rank()
  own,     ///< a block with this rank's number of rows
  joined,  ///< all ranks' own blocks, in rank order
  blocks   ///< a block for each rank, with the numbers of rows that this rank chooses
};

/// The ranks of the group that use the input, or the output, of a collective.
enum class Side : std::uint8_t { every_rank, root, all_but_root };

/// The properties of a kind of operation.
struct OpTraits {
  std::string_view name;
  bool reduces = false;   ///< the ranks' values are combined by a ReduceOp
  bool has_root = false;  ///< one rank of the group is the root
  Rows in = Rows::none, out = Rows::none;
  Side reads = Side::every_rank, writes = Side::every_rank;
};

/// One row for each kind, in their order.
inline constexpr std::array op_traits{
    OpTraits{.name = "all_reduce", .reduces = true, .in = Rows::whole, .out = Rows::whole},
    OpTraits{.name = "broadcast", .has_root = true, .in = Rows::whole, .out = Rows::whole},
    OpTraits{.name = "barrier"},
    OpTraits{.name = "open_group"},
    OpTraits{.name = "remove_group"},
    OpTraits{.name = "reduce",
             .reduces = true,
             .has_root = true,
             .in = Rows::whole,
             .out = Rows::whole,
             .writes = Side::root},
    OpTraits{.name = "all_gather", .in = Rows::own, .out = Rows::joined},
    OpTraits{.name = "reduce_scatter", .reduces = true, .in = Rows::whole, .out = Rows::dealt},
    OpTraits{.name = "all_to_all", .in = Rows::blocks, .out = Rows::blocks},
    OpTraits{.name = "gather", .has_root = true, .in = Rows::own, .out = Rows::joined, .writes = Side::root},
    OpTraits{.name = "scatter", .has_root = true, .in = Rows::whole, .out = Rows::dealt, .reads = Side::root},
    OpTraits{.name = "join"},
    OpTraits{.name = "send/recv",
             .has_root = true,
             .in = Rows::whole,
             .out = Rows::whole,
             .reads = Side::root,
             .writes = Side::all_but_root}};

inline constexpr int op_kind_count = static_cast<int>(op_traits.size());

constexpr const OpTraits& traits(OpKind kind) {
  return op_traits[static_cast<std::size_t>(kind)];
}

/// Whether the operation moves data once the ranks have agreed.
constexpr bool moves_data(OpKind kind) {
  return traits(kind).in != Rows::none;
}

/// Whether the ranks' values are combined by a ReduceOp.
constexpr bool reduces(OpKind kind) {
  return traits(kind).reduces;
}

/// Whether one rank of the group is the root.
constexpr bool has_root(OpKind kind) {
  return traits(kind).has_root;
}

/// Whether every rank chooses the number of rows of its blocks.
constexpr bool has_rows(OpKind kind) {
  return traits(kind).in == Rows::own || traits(kind).in == Rows::blocks;
}

/// Whether a tensor has one block for each rank of the group: the output of all_gather and gather, the input of
/// reduce_scatter and scatter, both tensors of all_to_all.
constexpr bool has_blocks(OpKind kind) {
  return has_rows(kind) || traits(kind).out == Rows::dealt;
}

/// Whether `side` includes the root (is_root), or the other ranks.
constexpr bool uses(Side side, bool is_root) {
  return side == Side::every_rank || (side == Side::root) == is_root;
}

/// Rows [begin, end) of a tensor.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  constexpr std::int64_t count() const { return end - begin; }
};

/// The rows of rank `rank` when reduce_scatter or scatter divides `rows` rows among `ranks` ranks: contiguous, in rank
/// order, and one more on each of the first `rows % ranks` ranks.
constexpr RowRange rows_of_rank(std::int64_t rows, int ranks, int rank) {
  const std::int64_t each = rows / ranks;
  const std::int64_t more = rows % ranks;
  const auto first = [&](std::int64_t r) { return r * each + (r < more ? r : more); };
  return {first(rank), first(rank + 1)};
}

/// What a receive from any rank has received.
struct Received {
  int source = -1;  ///< rank of the group
  int tag = 0;
  std::size_t bytes = 0;  ///< the first ones of the tensor
};

/// How operations that reduce combine the ranks' values. The numeric values are part of the wire format: append only.
///
/// Host arithmetic is done in rank order; 16-bit floats accumulate in f32 and are rounded once, integers in 64 bits
/// (128 for an average of 64-bit integers). `average` divides the sum by the ranks that took part; the integer average
/// is the exact sum, truncated toward zero. `min` and `max` of a NaN and anything are NaN. The bitwise ops work on each
/// bit of an integer; the logical ones take zero as false and any other value as true, and give 0 or 1. Of bool, `min`
/// and `product` are the logical and, `max` is the logical or, and results are 0 or 1. See reducible() for the
/// types of each op.
///
/// `adasum` works on whole tensors of floats, by all_reduce only. Of two vectors it is (1 - a.b / 2|a|^2) a + (1 - a.b
/// / 2|b|^2) b: the sum where they are orthogonal, the average where they are equal; a zero vector adds nothing. More
/// vectors are combined in a binary tree of neighbouring ranks; an odd one moves up unchanged. Each tensor is one
/// vector, also in a bucket with others. Source: Maleki et al. 2020, Scaling Distributed Training with Adaptive
/// Summation, arXiv:2006.02924.
enum class ReduceOp : std::uint8_t {
  sum,
  average,
  min,
  max,
  product,
  bit_and,
  bit_or,
  bit_xor,
  logical_and,
  logical_or,
  adasum
};

inline constexpr int reduce_op_count = 11;

constexpr bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
}
constexpr bool is_logical(ReduceOp op) {
  return op == ReduceOp::logical_and || op == ReduceOp::logical_or;
}

/// Whether every backend can combine values of this type by `op`, element by element: floats by arithmetic, integers by
/// every op except adasum, bool by every op except sum, average and adasum.
constexpr bool reducible(ReduceOp op, DType dtype) {
  if (op == ReduceOp::adasum) return false;  // an element of the result depends on the whole tensors
  if (dtype == DType::boolean) return op != ReduceOp::sum && op != ReduceOp::average;
  return !is_floating_point(dtype) || !(is_bitwise(op) || is_logical(op));
}

/// Whether an op on values of this type may have scales other than 1: arithmetic on numbers.
constexpr bool scalable(ReduceOp op, DType dtype) {
  return dtype != DType::boolean && !is_bitwise(op) && !is_logical(op);
}

/// "f32[5,4]"; "f32[*,4]" where the number of rows may differ between ranks.
std::string to_string(DType dtype, const Shape& shape);

std::string_view to_string(OpKind kind);
std::string_view to_string(ReduceOp op);

/// Stands for the first extent of a shape where it may differ between ranks.
inline constexpr std::int64_t any_rows = -1;

/// One of the tensors of a grouped submission.
struct GroupMember {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

/// Everything except name and group that must be equal on all ranks for an operation to run.
struct Signature {
  OpKind kind = OpKind::all_reduce;
  ReduceOp op = ReduceOp::sum;  ///< of kinds that reduce
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  std::int32_t root = 0;         ///< of kinds that have a root; a rank of the group
  double prescale = 1;           ///< of kinds that reduce; multiplies each input
  double postscale = 1;          ///< of kinds that reduce; multiplies the result
  bool divide_by_group = false;  ///< average: divide by the size of the group, not by the ranks that took part
  std::int32_t priority = 0;     ///< of what is ready, the higher goes first
  Shape shape;  ///< of the input: one rank's block for all_gather and gather, else the whole tensor. The first extent
                ///< is any_rows where has_rows()
  std::vector<GroupMember> members;  ///< of a grouped submission; dtype and shape above are those of the first

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// Whether the op suits the type; true for kinds that do not reduce.
constexpr bool reducible(const Signature& signature) {
  return !reduces(signature.kind) || reducible(signature.op, signature.dtype);
}

/// "all_reduce(sum) f32[5,4]", "reduce(max, root 1) f32[5]", "broadcast(root 0) i64[]", "barrier"; with device and
/// scales that are not the default.
std::string to_string(const Signature& signature);

}  // namespace kolo
