#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "models/util/error.h"

namespace kolo::models {

/// What the inputs of matrix products are rounded to. Weights and gradients are f32 in any case, and so are sums,
/// norms, softmax and the residual stream.
enum class Precision : std::uint8_t { f32, bf16, f16 };

/// A number that goes into a matrix product: a float, or 16 bits, as the precision says that comes along with it.
struct Work;

/// Bytes of one such number.
constexpr std::size_t work_size(Precision precision) {
  return precision == Precision::f32 ? 4 : 2;
}

/// Number `index` of an array of them.
inline Work* work_at(Work* work, Precision precision, std::int64_t index) {
  return reinterpret_cast<Work*>(reinterpret_cast<std::byte*>(work) +
                                 static_cast<std::size_t>(index) * work_size(precision));
}
inline const Work* work_at(const Work* work, Precision precision, std::int64_t index) {
  return work_at(const_cast<Work*>(work), precision, index);
}

inline constexpr WordTable<Precision, 3> precisions{"precision", {"f32", "bf16", "f16"}};
constexpr std::string_view to_string(Precision precision) {
  return precisions[precision];
}

/// Rounds factor·values to 16-bit floats, to nearest, ties to even; what is too large becomes infinite.
///
/// precision  bf16 or f16
/// out        as many as the values
void to_half(Precision precision, std::span<const float> values, float factor, std::span<std::uint16_t> out);

/// The other way: exact.
void from_half(Precision precision, std::span<const std::uint16_t> values, std::span<float> out);

}  // namespace kolo::models
