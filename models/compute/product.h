#pragma once

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"
#include "models/compute/precision.h"

namespace kolo::models {

/// gemm() of operands in a precision; sums and results are f32. Where the processor cannot multiply 16-bit floats, the
/// operands are widened first: the same result, but slower.
void product(Precision precision, const GemmShape& shape, const MatmulItem* a, const MatmulItem* b, float* c);

/// `values` rounded into `memory`; f32: the values themselves. `what` names their use in the ModelError that is thrown
/// if there is no memory.
const MatmulItem* rounded(Precision precision, std::int64_t count, const float* values, Buffer& memory,
                          std::string_view what);

/// y [rows, out] = x [rows, in] · wᵀ, for w [out, in].
inline void product_forward(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out,
                            const MatmulItem* x, const MatmulItem* w, float* y) {
  product(precision, {.m = rows, .n = out, .k = in, .transpose_b = true}, x, w, y);
}

/// dx [rows, in] = dy [rows, out] · w.
inline void product_backward(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out,
                             const MatmulItem* dy, const MatmulItem* w, float* dx) {
  product(precision, {.m = rows, .n = in, .k = out}, dy, w, dx);
}

/// dw [out, in] = dyᵀ·x, or += with `add`.
inline void product_weight(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out,
                           const MatmulItem* dy, const MatmulItem* x, bool add, float* dw) {
  product(precision, {.m = out, .n = in, .k = rows, .transpose_a = true, .beta = add ? 1.0f : 0.0f}, dy, x, dw);
}

}  // namespace kolo::models
