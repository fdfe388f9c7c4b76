#pragma once

#include <kolo/backend.h>

#include "ops/kernels/element.h"
#include "ops/nccl/table.h"

namespace kolo {

/// How NCCL runs a kind of bucket.
enum class NcclWay {
  direct,    ///< NCCL's own type and op: large tensors where they are, small ones packed
  widened,   ///< all packed, and cast or scaled on the way to the type in which NCCL adds
  gathered,  ///< all values to all ranks, combined by a kernel of kolo: for types and ops that NCCL lacks
};

/// What follows from a bucket's signature, and from whether ranks have joined; equal on every rank.
struct NcclMethod {
  NcclWay way = NcclWay::direct;
  DType wire = DType::u8;   ///< the type of what is sent
  NcclOp op = NcclOp::sum;  ///< of reductions
  double factor = 1;        ///< if not 1, sum is a PreMulSum with this factor
  Conversion pack{};        ///< of packed tensors
  Conversion unpack{};
};

/// Requires reducible(signature) of reductions. `ranks` of the group, `absent` of which have joined; `divide_by` of
/// an average; `wide_halves`: 16-bit floats travel, and are added, as f32.
NcclMethod nccl_method(const Signature& signature, int ranks, std::size_t absent, int divide_by, bool wide_halves);

/// Regions of staging begin at multiples of this, so that vectors are whole.
inline constexpr std::int64_t region_alignment = 16;

/// Regions of staging that a kind takes where ranks have blocks.
int regions_of(OpKind kind, NcclWay way, int ranks);

/// Whether buckets of this signature can be planned for `ranks` ranks, whoever of them joins: what goes through regions
/// of staging, one for each rank, must find room there, and what is gathered is combined of most_combined_ranks at
/// most.
bool can_plan(const Signature& signature, int ranks, std::int64_t staging_bytes);

/// NCCL's name of a type; of bool and 16-bit integers, which it does not have, of a type as wide, or u8.
NcclType nccl_type(DType dtype);

}  // namespace kolo
