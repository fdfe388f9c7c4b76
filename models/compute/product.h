#pragma once

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"
#include "models/compute/precision.h"

namespace kolo::models {

/// gemm() of numbers in a precision; sums and results are f32. What the processor cannot multiply in 16 bits is widened
/// first: the same numbers, without the speed.
void product(Precision precision, const GemmShape& shape, const Work* a, const Work* b, float* c);

/// `values`, rounded into `memory`, of which a ModelError says that it was for `what`; f32: the values themselves.
const Work* rounded(Precision precision, std::int64_t count, const float* values, Buffer& memory,
                    std::string_view what);

/// y [rows, out] = x [rows, in] · wᵀ, for w [out, in].
inline void product_forward(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out, const Work* x,
                            const Work* w, float* y) {
  product(precision, {.m = rows, .n = out, .k = in, .transpose_b = true}, x, w, y);
}

/// dx [rows, in] = dy [rows, out] · w.
inline void product_backward(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out, const Work* dy,
                             const Work* w, float* dx) {
  product(precision, {.m = rows, .n = in, .k = out}, dy, w, dx);
}

/// dw [out, in] = dyᵀ·x, or is added to.
inline void product_weight(Precision precision, std::int64_t rows, std::int64_t in, std::int64_t out, const Work* dy,
                           const Work* x, bool add, float* dw) {
  product(precision, {.m = out, .n = in, .k = rows, .transpose_a = true, .beta = add ? 1.0f : 0.0f}, dy, x, dw);
}

}  // namespace kolo::models
