#include "ops/nccl/method.h"

#include <cmath>

#include <kolo/float16.h>

#include "ops/bucket.h"
#include "ops/gpu/pack_items.h"

namespace kolo {
namespace {

bool is_sum(ReduceOp op) {
  return op == ReduceOp::sum || op == ReduceOp::average;
}

NcclOp nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product: return NcclOp::product;
    case ReduceOp::min: return NcclOp::min;
    case ReduceOp::max: return NcclOp::max;
    default: return NcclOp::sum;
  }
}

DType wide_integer(DType dtype) {
  const bool is_signed = dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 || dtype == DType::i64;
  return is_signed ? DType::i64 : DType::u64;
}

NcclMethod packed_as(const Signature& signature, DType wire, double prescale, int divide_by, double postscale) {
  NcclMethod method{NcclWay::widened, wire, nccl_op(signature.op)};
  method.pack = {signature.dtype, wire, prescale};
  method.unpack = {wire, signature.dtype, 1, divide_by, postscale};
  return method;
}

/// NCCL would lose a NaN, and has no bool: it finds the largest keys. Ranks that have joined give zeros, which are
/// below all.
NcclMethod largest_key(const Signature& signature, bool descending) {
  NcclMethod method = packed_as(signature, key_type(signature.dtype), signature.prescale, 1, signature.postscale);
  method.op = NcclOp::max;
  method.pack.descending = method.unpack.descending = descending;
  return method;
}

/// Whether NCCL, which holds a factor in the type that it adds, would multiply by just this one.
bool holds(DType dtype, double factor) {
  const auto f32 = static_cast<float>(factor);
  if (dtype == DType::f16) return static_cast<double>(to_float(to_float16(f32))) == factor;
  if (dtype == DType::bf16) return static_cast<double>(to_float(to_bfloat16(f32))) == factor;
  return dtype == DType::f64 || (std::isfinite(f32) && (f32 != 0 || factor == 0));
}

/// Sums are scaled by NCCL as it reads: with one factor for all, since they are linear. So are its averages (2.28), by
/// 1/ranks.
NcclMethod sum_of_floats(const Signature& signature, int ranks, std::size_t absent, int divide_by) {
  NcclMethod method{NcclWay::direct, signature.dtype, NcclOp::sum};
  method.factor = signature.prescale * signature.postscale;
  const bool averages = signature.op == ReduceOp::average;
  const bool exact = size_of(signature.dtype) > 2 || holds(signature.dtype, 1.0 / ranks);
  if (averages && method.factor == 1 && absent == 0 && divide_by == ranks && exact)
    method.op = NcclOp::average;
  else if (averages)
    method.factor /= divide_by;
  return method;
}

NcclMethod method_of_floats(const Signature& signature, int ranks, std::size_t absent, int divide_by,
                            bool wide_halves) {
  const bool scales = signature.prescale != 1 || signature.postscale != 1;
  const bool widens = wide_halves && size_of(signature.dtype) == 2;
  const int divisor = signature.op == ReduceOp::average ? divide_by : 1;
  if (is_sum(signature.op)) {
    const NcclMethod sum = sum_of_floats(signature, ranks, absent, divide_by);
    // A group of one rank does not scale by NCCL (2.28), which leaves the end of a tensor there as it was.
    const bool scales_right = sum.factor == 1 || (ranks > 1 && holds(signature.dtype, sum.factor));
    if (scales_right && !widens) return sum;
    const DType wire = size_of(signature.dtype) == 2 ? DType::f32 : signature.dtype;
    return packed_as(signature, wire, signature.prescale, divisor, signature.postscale);
  }
  if (signature.op != ReduceOp::product) return largest_key(signature, signature.op == ReduceOp::min);
  if (absent > 0) return {NcclWay::gathered, signature.dtype};
  if (widens || scales)
    return packed_as(signature, widens ? DType::f32 : signature.dtype, signature.prescale, 1, signature.postscale);
  return {NcclWay::direct, signature.dtype, NcclOp::product};
}

NcclMethod method_of_integers(const Signature& signature, std::size_t absent, int divide_by) {
  const bool averages = signature.op == ReduceOp::average;
  const bool scales = signature.prescale != 1 || signature.postscale != 1;
  const std::size_t size = size_of(signature.dtype);
  if (averages && size == 8) return {NcclWay::gathered, signature.dtype};  // the sum needs 128 bits
  if (absent > 0 && !is_sum(signature.op)) return {NcclWay::gathered, signature.dtype};
  if (averages || scales || size == 2) {
    return packed_as(signature, wide_integer(signature.dtype), signature.prescale, averages ? divide_by : 1,
                     signature.postscale);
  }
  return {NcclWay::direct, signature.dtype, nccl_op(signature.op)};
}

}  // namespace

NcclMethod nccl_method(const Signature& signature, int ranks, std::size_t absent, int divide_by, bool wide_halves) {
  NcclMethod method;
  if (reduces(signature.kind)) {
    const ReduceOp of_truths = op_of_truths(signature.op);
    if (signature.dtype == DType::boolean && of_truths != ReduceOp::bit_xor)
      method = largest_key(signature, of_truths == ReduceOp::bit_and);
    else if (is_bitwise(signature.op) || is_logical(signature.op))
      method = {NcclWay::gathered, signature.dtype};
    else if (is_floating_point(signature.dtype))
      method = method_of_floats(signature, ranks, absent, divide_by, wide_halves);
    else
      method = method_of_integers(signature, absent, divide_by);
  } else {
    method.wire = signature.dtype;
  }
  if (method.way != NcclWay::widened) method.pack = method.unpack = {signature.dtype, signature.dtype};
  return method;
}

int regions_of(OpKind kind, NcclWay way, int ranks) {
  if (kind == OpKind::all_to_all) return 2 * ranks;
  return kind == OpKind::reduce_scatter && way == NcclWay::gathered ? 2 * ranks + 1 : ranks;
}

bool can_plan(const Signature& signature, int ranks, std::int64_t staging_bytes) {
  const auto gathers = [&](std::size_t absent) {
    return nccl_method(signature, ranks, absent, ranks, false).way == NcclWay::gathered;
  };
  const bool gathered = reduces(signature.kind) && (gathers(0) || gathers(1));
  if (gathered && ranks > most_combined_ranks) return false;
  const int regions = has_blocks(signature.kind)
                          ? regions_of(signature.kind, gathered ? NcclWay::gathered : NcclWay::direct, ranks)
                          : ranks + 1;
  return (!gathered && !has_blocks(signature.kind)) || regions * region_alignment <= staging_bytes;
}

NcclType nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return NcclType::f64;
    case DType::f32: return NcclType::f32;
    case DType::f16:
    case DType::i16:
    case DType::u16: return NcclType::f16;
    case DType::bf16: return NcclType::bf16;
    case DType::i64: return NcclType::i64;
    case DType::i32: return NcclType::i32;
    case DType::i8: return NcclType::i8;
    case DType::u64: return NcclType::u64;
    case DType::u32: return NcclType::u32;
    case DType::u8:
    case DType::boolean: return NcclType::u8;
  }
  return NcclType::u8;
}

}  // namespace kolo
