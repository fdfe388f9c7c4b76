#pragma once

#include <kolo/backend.h>

#include "ops/kernels/element.h"
#include "ops/nccl/table.h"

namespace kolo {

/// How NCCL runs a kind of bucket.
enum class NcclWay {
  direct,    ///< NCCL's own type and op: large tensors where they are, small ones packed
  widened,   ///< everything is packed, cast or scaled on the way: into the type in which NCCL adds
  gathered,  ///< every rank gets the values of all and combines them in a kernel of this library: what NCCL has no type
             ///< or op for
};

/// What follows from a bucket's signature, and from whether ranks have joined; equal on every rank.
struct NcclMethod {
  NcclWay way = NcclWay::direct;
  DType wire = DType::u8;   ///< what travels
  NcclOp op = NcclOp::sum;  ///< of what reduces()
  double factor = 1;        ///< if not 1, sum is a PreMulSum with this factor
  Conversion pack{};        ///< of what is packed
  Conversion unpack{};
};

/// Requires reducible(signature) of what reduces(). `ranks` of the group, `absent` of which have joined; `divide_by` of
/// an average; `wide_halves`: 16-bit floats travel, and are added, as f32.
NcclMethod nccl_method(const Signature& signature, int ranks, std::size_t absent, int divide_by, bool wide_halves);

/// NCCL's name of a type; of bool and 16-bit integers, which it does not have, of a type as wide, or u8.
NcclType nccl_type(DType dtype);

}  // namespace kolo
