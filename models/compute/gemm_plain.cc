#include <algorithm>
#include <vector>

#include "models/compute/gemm.h"

namespace kolo::models {
namespace {

/// Writes `in` [rows, columns] as `out` [columns, rows], in tiles that stay in cache.
void transpose(const float* in, std::int64_t rows, std::int64_t columns, float* out) {
  constexpr std::int64_t tile = 16;
  for (std::int64_t row = 0; row < rows; row += tile) {
    for (std::int64_t column = 0; column < columns; column += tile) {
      for (std::int64_t r = row; r < std::min(row + tile, rows); ++r) {
        for (std::int64_t q = column; q < std::min(column + tile, columns); ++q)
          out[q * rows + r] = in[r * columns + q];
      }
    }
  }
}

const float* untransposed(const float* stored, bool transposed, std::int64_t rows, std::int64_t columns,
                          std::vector<float>& scratch) {
  if (!transposed) return stored;
  scratch.resize(static_cast<std::size_t>(rows * columns));
  transpose(stored, columns, rows, scratch.data());
  return scratch.data();
}

}  // namespace

// Transposes what is transposed, then adds rows of B, scaled by elements of A, to rows of C. A block of B's rows stays
// in cache while all rows of C pass over it; the innermost loop is one the compiler turns into vector instructions.
void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  thread_local std::vector<float> a_scratch, b_scratch;
  a = untransposed(a, shape.transpose_a, shape.m, shape.k, a_scratch);
  b = untransposed(b, shape.transpose_b, shape.k, shape.n, b_scratch);
  const auto elements = static_cast<std::size_t>(shape.m * shape.n);
  if (shape.beta == 0) std::fill_n(c, elements, 0.0f);
  if (shape.beta != 0 && shape.beta != 1) std::for_each_n(c, elements, [&](float& value) { value *= shape.beta; });
  constexpr std::int64_t block = 64;
  for (std::int64_t first = 0; first < shape.k; first += block) {
    const std::int64_t last = std::min(first + block, shape.k);
    for (std::int64_t row = 0; row < shape.m; ++row) {
      float* const out = c + row * shape.n;
      for (std::int64_t i = first; i < last; ++i) {
        const float factor = a[row * shape.k + i];
        const float* const in = b + i * shape.n;
        for (std::int64_t column = 0; column < shape.n; ++column) out[column] += factor * in[column];
      }
    }
  }
}

bool gemm_bf16(const GemmShape&, const std::uint16_t*, const std::uint16_t*, float*) {
  return false;
}

std::string_view gemm_backend() {
  return "plain";
}

}  // namespace kolo::models
