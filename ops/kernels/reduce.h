#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include <kolo/dtype.h>
#include <kolo/op.h>

namespace kolo {

/// How values of several ranks become one; equal on every rank.
struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1;   ///< multiplies every input
  double postscale = 1;  ///< multiplies the result
  int divide_by = 1;     ///< average only: divides the sum
};

inline Reduction reduction_of(const Signature& signature, int divide_by) {
  return {signature.dtype, signature.op, signature.prescale, signature.postscale, divide_by};
}

/// The type in which values that are combined in part travel to other nodes: one that keeps all that an accumulator of
/// reduce() would have kept. That is f32 for 16-bit floats and 64 bits for integers that are averaged
/// or scaled; the type itself where nothing is lost that way. Nothing for averages of 64-bit integers.
std::optional<DType> carried_type(const Signature& signature);

/// Combines element i of all sources, in their order, and writes it as element i of every destination. Requires that
/// the op is reducible() for the type, and scales of 1 unless it is scalable().
///
/// sources, destinations  `count` contiguous elements each, aligned or not; a destination may be a source (the same
/// address),
///                        otherwise they do not overlap
/// streamed               more destinations, or the only ones: written past the cache, for results that nobody reads
/// soon here;
///                        finish_copies() of copy.h must follow before other threads read them
///
/// f64 accumulates in f64, all other floats in f32 and rounds once; scales and the division of an average are done in
/// the accumulator's type. Integers accumulate in 64 bits (an average of 64-bit integers in 128) and keep the low bits,
/// as two's complement does; their average is the exact sum divided, truncated toward zero; a scale other than 1
/// multiplies as f64 and truncates. min and max of a NaN and anything are NaN. A bool is true if its byte is not zero.
/// An element's result depends on nothing but that element: callers may cut a range as they like and get the same bits.
void reduce(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, std::span<void* const> streamed = {});

}  // namespace kolo
