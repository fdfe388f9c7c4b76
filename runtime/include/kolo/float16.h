#pragma once

#include <cstdint>

#include <kolo/dtype.h>

namespace kolo {

namespace detail {

// The conversions of 16-bit floats, on the bits of one number or of a vector of numbers: `Bits` is std::uint32_t and
// `Floats` float, or both are GCC's vectors of these. Always inlined, because files compiled for
// other instruction sets use them.

/// `yes` or `no`, by masks: a branch would keep compilers from vectorising loops of conversions.
[[gnu::always_inline]] constexpr std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}
/// Lane by lane.
template <class Mask, class Bits>
[[gnu::always_inline]] inline Bits select(const Mask& condition, const Bits& yes, const Bits& no) {
  return condition ? yes : no;
}

template <class Floats, class Bits>
[[gnu::always_inline]] constexpr Floats widen_f16(const Bits& half) {
  // Exponent and mantissa move to f32's place and the bias from 15 to 127. Subnormals get the implicit one that they
  // lack by counting as 2^-14 more, which is then subtracted, exactly (and never as an f32 subnormal, which a host may
  // flush to zero).
  const Bits zero{};
  const Bits sign = (half & 0x8000u) << 16;
  const Bits magnitude = half & 0x7fffu;
  const Bits shifted = magnitude << 13;
  const Bits normal = shifted + 0x38000000u;
  const Bits subnormal = __builtin_bit_cast(Bits, __builtin_bit_cast(Floats, shifted + 0x38800000u) - 0x1p-14f);
  const Bits finite = select(magnitude < 0x0400u, subnormal, normal);
  const Bits quiet = select(magnitude > 0x7c00u, zero + 0x00400000u, zero);
  const Bits special = 0x7f800000u | shifted | quiet;
  return __builtin_bit_cast(Floats, sign | select(magnitude >= 0x7c00u, special, finite));
}

template <class Bits, class Floats>
[[gnu::always_inline]] constexpr Bits narrow_f16(const Floats& value) {
  const Bits zero{};
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits sign = (bits >> 16) & 0x8000u;
  const Bits magnitude = bits & 0x7fffffffu;

  // Normal results: rebias the exponent (127 to 15), round the 13 mantissa bits that go; a carry raises the exponent.
  const Bits odd = (magnitude >> 13) & 1u;
  const Bits normal = (magnitude - 0x38000000u + 0x0fffu + odd) >> 13;

  // Subnormal results (below 2^-14): the last place of 0.5f counts 2^-24, so the addition rounds to multiples of that.
  const Bits small = select(magnitude < 0x38800000u, magnitude, zero);
  const Bits subnormal = __builtin_bit_cast(Bits, __builtin_bit_cast(Floats, small) + 0.5f) - 0x3f000000u;

  const Bits special = select(magnitude > 0x7f800000u, zero + 0x7e00u, zero + 0x7c00u);
  const Bits finite = select(magnitude < 0x38800000u, subnormal, normal);
  return sign | select(magnitude >= 0x47800000u, special, finite);
}

template <class Floats, class Bits>
[[gnu::always_inline]] constexpr Floats widen_bf16(const Bits& half) {
  return __builtin_bit_cast(Floats, half << 16);
}

template <class Bits, class Floats>
[[gnu::always_inline]] constexpr Bits narrow_bf16(const Floats& value) {
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits quiet_nan = (bits >> 16) | 0x0040u;  // rounding could carry a NaN into infinity or zero
  return select((bits & 0x7fffffffu) > 0x7f800000u, quiet_nan, rounded);
}

}  // namespace detail

// kolo's one conversion of 16-bit floats, with the same bits on hosts and GPUs. Source: IEEE 754-2019, section 3.4
// (binary16); bfloat16 is the upper half of a binary32.

/// The exact value of a half-precision number. NaNs keep their sign and payload and become quiet.
constexpr float to_float(Float16 half) {
  return detail::widen_f16<float>(std::uint32_t{half.bits});
}

/// The exact value of a bfloat16 number.
constexpr float to_float(BFloat16 number) {
  return detail::widen_bf16<float>(std::uint32_t{number.bits});
}

/// The nearest half-precision number, ties to even; infinity from 65 520 on; a NaN for a NaN, of its sign, without its
/// payload.
constexpr Float16 to_float16(float value) {
  return {static_cast<std::uint16_t>(detail::narrow_f16<std::uint32_t>(value))};
}

/// The nearest bfloat16 number, ties to even; a quiet NaN for a NaN.
constexpr BFloat16 to_bfloat16(float value) {
  return {static_cast<std::uint16_t>(detail::narrow_bf16<std::uint32_t>(value))};
}

}  // namespace kolo
