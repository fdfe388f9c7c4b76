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

/// How all_reduce combines the ranks' values.
///
/// Host arithmetic is done in rank order; 16-bit floats accumulate in f32 and are rounded once, integers in 64 bits (128
/// for an average of 64-bit integers). `average` divides the sum by the ranks that took part; the integer average is the
/// exact sum, truncated toward zero. `min` and `max` of a NaN and anything are NaN.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product };

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
