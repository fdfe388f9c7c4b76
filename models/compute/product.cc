#include "models/compute/product.h"

#include "models/compute/buffer.h"
#include "models/compute/kernels.h"

namespace kolo::models {
namespace {

const float* widened(Precision precision, std::int64_t count, const MatmulItem* values, AlignedFloats& scratch) {
  if (scratch.size() < static_cast<std::size_t>(count)) scratch.resize(static_cast<std::size_t>(count));
  kernels(precision).widen(count, values, scratch.data());
  return scratch.data();
}

}  // namespace

void product(Precision precision, const GemmShape& shape, const MatmulItem* a, const MatmulItem* b, float* c) {
  if (precision == Precision::f32) {
    return gemm(shape, reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), c);
  }
  const auto* const left = reinterpret_cast<const std::uint16_t*>(a);
  const auto* const right = reinterpret_cast<const std::uint16_t*>(b);
  if (precision == Precision::bf16 && gemm_bf16(shape, left, right, c)) return;
  thread_local AlignedFloats left_scratch, right_scratch;
  gemm(shape, widened(precision, shape.m * shape.k, a, left_scratch),
       widened(precision, shape.k * shape.n, b, right_scratch), c);
}

bool multiplies_unwidened(Precision precision) {
  if (precision != Precision::bf16) return precision == Precision::f32;
  const std::uint16_t one = 0x3f80;
  float product = 0;
  return gemm_bf16({.m = 1, .n = 1, .k = 1}, &one, &one, &product);
}

}  // namespace kolo::models
