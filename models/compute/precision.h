#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <kolo/dtype.h>

#include "models/util/error.h"

namespace kolo::models {

/// The dtype to which inputs of matrix products are rounded. Weights, gradients, sums, norms, softmax and the residual
/// stream are always f32.
enum class Precision : std::uint8_t { f32, bf16, f16 };

/// An element of a matrix product's operand: an f32 or a 16-bit float, by the Precision that accompanies it.
struct MatmulItem;

/// The dtype of operands of matrix products.
constexpr DType dtype_of(Precision precision) {
  if (precision == Precision::f32) return DType::f32;
  return precision == Precision::bf16 ? DType::bf16 : DType::f16;
}

/// Bytes of one MatmulItem.
constexpr std::size_t item_bytes(Precision precision) {
  return precision == Precision::f32 ? 4 : 2;
}

/// Element `index` of an array.
inline MatmulItem* item_at(MatmulItem* items, Precision precision, std::int64_t index) {
  return reinterpret_cast<MatmulItem*>(reinterpret_cast<std::byte*>(items) +
                                       static_cast<std::size_t>(index) * item_bytes(precision));
}
inline const MatmulItem* item_at(const MatmulItem* items, Precision precision, std::int64_t index) {
  return item_at(const_cast<MatmulItem*>(items), precision, index);
}

inline constexpr WordTable<Precision, 3> precisions{"precision", {"f32", "bf16", "f16"}};
constexpr std::string_view to_string(Precision precision) {
  return precisions[precision];
}

/// Rounds factor·values to 16-bit floats, to nearest, ties to even; values out of range become infinite.
///
/// precision  bf16 or f16
/// out        as many as the values
void to_half(Precision precision, std::span<const float> values, float factor, std::span<std::uint16_t> out);

/// Widens 16-bit floats to f32, exactly.
void from_half(Precision precision, std::span<const std::uint16_t> values, std::span<float> out);

}  // namespace kolo::models
