#pragma once

#include <cstdint>
#include <span>

#include "models/compute/precision.h"

namespace kolo::models {

/// Rounds factor·values to 16-bit floats, to nearest, ties to even; what is too large becomes infinite.
///
/// precision  bf16 or f16
/// out        as many as the values
void to_half(Precision precision, std::span<const float> values, float factor, std::span<std::uint16_t> out);

/// The other way: exact.
void from_half(Precision precision, std::span<const std::uint16_t> values, std::span<float> out);

}  // namespace kolo::models
