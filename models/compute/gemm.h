#pragma once

#include <cstdint>
#include <string_view>

namespace kolo::models {

/// Extents of C = op(A)·op(B) + beta·C: op(A) is [m, k], op(B) is [k, n], C is [m, n].
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  ///< A is stored as [k, m]
  bool transpose_b = false;  ///< B is stored as [n, k]
  float beta = 0;            ///< 0 overwrites C, also where it holds NaN
};

/// Single-precision matrix product of dense row-major matrices, on the calling thread alone. Extents are positive.
///
/// The same shape and the same numbers give the same bits in every run on one machine. C must not overlap A or B.
/// Thread-safe. One of gemm_onednn.cc, gemm_openblas.cc and gemm_plain.cc is linked (CMake: KOLO_GEMM).
void gemm(const GemmShape& shape, const float* a, const float* b, float* c);

/// The same with bf16 operands and f32 sums. Returns false, and does nothing, where the library or the processor has no
/// fast implementation: the caller then widens the operands.
bool gemm_bf16(const GemmShape& shape, const std::uint16_t* a, const std::uint16_t* b, float* c);

/// The linked library: "onednn", "openblas" or "plain".
std::string_view gemm_backend();

}  // namespace kolo::models
