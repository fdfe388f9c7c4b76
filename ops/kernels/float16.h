#pragma once

#include <bit>
#include <cstdint>

#include <kolo/dtype.h>

namespace kolo {

/// `yes` or `no`, by masks: a branch would keep compilers from vectorising loops of conversions.
constexpr std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// The exact value of a half-precision number. NaNs keep their sign and payload and become quiet.
constexpr float to_float(Float16 half) {
  // Exponent and mantissa move to f32's place and the bias from 15 to 127. Subnormals get the implicit one that they
  // lack by counting as 2^-14 more, which is then subtracted, exactly (and never as an f32 subnormal, which a host may
  // flush to zero).
  const std::uint32_t sign = (half.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + 0x38000000u;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + 0x38800000u) - 0x1p-14f);
  const std::uint32_t finite = select(magnitude < 0x0400u, subnormal, normal);
  const std::uint32_t quiet = select(magnitude > 0x7c00u, 0x00400000u, 0u);
  const std::uint32_t special = 0x7f800000u | shifted | quiet;
  return std::bit_cast<float>(sign | select(magnitude >= 0x7c00u, special, finite));
}

/// The exact value of a bfloat16 number.
constexpr float to_float(BFloat16 number) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

/// The nearest half-precision number, ties to even; infinity from 65 520 on, a NaN for a NaN.
constexpr Float16 to_float16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;

  // Normal results: rebias the exponent (127 to 15), round the 13 mantissa bits that go; a carry raises the exponent.
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + odd) >> 13;

  // Subnormal results (below 2^-14): the last place of 0.5f counts 2^-24, so the addition rounds to multiples of that.
  const std::uint32_t small = select(magnitude < 0x38800000u, magnitude, 0u);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(small) + 0.5f) - 0x3f000000u;

  const std::uint32_t special = select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  const std::uint32_t finite = select(magnitude < 0x38800000u, subnormal, normal);
  return {static_cast<std::uint16_t>(sign | select(magnitude >= 0x47800000u, special, finite))};
}

/// The nearest bfloat16 number, ties to even; a NaN for a NaN.
constexpr BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x0040u;  // rounding could carry a NaN into infinity or zero
  return {static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

}  // namespace kolo
