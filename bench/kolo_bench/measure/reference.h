#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <kolo/dtype.h>
#include <kolo/op.h>

namespace kolo::bench {

/// What a reduction over ranks must give, to the last bit, in the plainest arithmetic there is: this program's own, so
/// that what is checked does not check itself. Element i of all inputs, in rank order; 16-bit floats are added as f32
/// and rounded once, integers as 64 bits that wrap; an average is the sum, exact for integers, divided by the number of
/// inputs, and truncates integers toward zero. Of zeros that differ in their
/// sign min and max take the later rank's. Inputs have no NaN. Not adasum.
///
/// inputs  of all ranks, `count` elements each
/// result  `count` elements, apart from the inputs
void reference_reduction(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::int64_t count,
                         std::byte* result);

}  // namespace kolo::bench
