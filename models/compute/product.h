#pragma once

#include "models/compute/gemm.h"
#include "models/compute/precision.h"

namespace kolo::models {

/// gemm() of operands in a precision; sums and results are f32. Where the processor cannot multiply 16-bit floats, the
/// operands are widened first: the same result, but slower.
void product(Precision precision, const GemmShape& shape, const MatmulItem* a, const MatmulItem* b, float* c);

/// Whether operands of that precision are multiplied as they are, and not widened first.
bool multiplies_unwidened(Precision precision);

}  // namespace kolo::models
