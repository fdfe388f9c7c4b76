#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <kolo/device.h>
#include <kolo/dtype.h>
#include <kolo/tensor.h>

namespace kolo {

/// The collectives. The numeric values are part of the wire format: append only.
///
/// make_group and remove_group are agreed like any other operation but move no data.
enum class OpKind : std::uint8_t { all_reduce, broadcast, barrier, make_group, remove_group };

/// Whether there is anything to move once the ranks have agreed.
constexpr bool moves_data(OpKind kind) {
  return kind != OpKind::barrier && kind != OpKind::make_group && kind != OpKind::remove_group;
}

/// How operations that reduce combine the ranks' values. The numeric values are part of the wire format: append only.
///
/// Host arithmetic is done in rank order; 16-bit floats accumulate in f32 and are rounded once, integers in 64 bits (128
/// for an average of 64-bit integers). `average` divides the sum by the ranks that took part; the integer average is the
/// exact sum, truncated toward zero. `min` and `max` of a NaN and anything are NaN. The bitwise ops work on each bit of an
/// integer; the logical ones take zero for false and anything else for true, and give 0 or 1. Of bool, `min` and `product`
/// are the logical and, `max` is the logical or, and results are 0 or 1. See reducible() for what takes which.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product, bit_and, bit_or, bit_xor, logical_and, logical_or };

inline constexpr int reduce_op_count = 10;

constexpr bool is_bitwise(ReduceOp op) { return op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor; }
constexpr bool is_logical(ReduceOp op) { return op == ReduceOp::logical_and || op == ReduceOp::logical_or; }

/// Whether values of this type can be combined so, on any backend: floats by arithmetic, integers by every op, bool by every op
/// but sum and average.
constexpr bool reducible(ReduceOp op, DType dtype) {
  if (dtype == DType::boolean) return op != ReduceOp::sum && op != ReduceOp::average;
  return !is_floating_point(dtype) || !(is_bitwise(op) || is_logical(op));
}

/// Whether scales other than 1 may accompany an op on values of this type: where the values count something.
constexpr bool scalable(ReduceOp op, DType dtype) {
  return dtype != DType::boolean && !is_bitwise(op) && !is_logical(op);
}

std::string_view to_string(OpKind kind);
std::string_view to_string(ReduceOp op);

/// Everything that must be equal on all ranks for an operation to run, its name and its group aside.
struct Signature {
  OpKind kind = OpKind::all_reduce;
  ReduceOp op = ReduceOp::sum;  ///< all_reduce only
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  std::int32_t root = 0;  ///< broadcast only; a rank of the group
  double prescale = 1;    ///< all_reduce only; multiplies each input
  double postscale = 1;   ///< all_reduce only; multiplies the result
  Shape shape;
  std::string detail;     ///< make_group, remove_group: which ranks, as text

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// "all_reduce(sum) f32[5,4]", "broadcast(root 0) i64[]", "barrier"; device and scales only where they are not the default.
std::string to_string(const Signature& signature);

}  // namespace kolo
