#include "models/compute/half.h"

#include <bit>
#include <cstddef>

namespace kolo::models {
namespace {

// Loops over these are free of branches, so that they become vector instructions.

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool none = (bits & 0x7fffffff) > 0x7f800000;  // not a number: rounding must not carry it to infinity
  return static_cast<std::uint16_t>(none ? 0x7fc0 | (bits >> 16) : rounded);
}

float from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

/// Small values are rounded by adding a number whose last bit is a half float's smallest step, others by their bits.
std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000, magnitude = bits ^ sign;
  const float small = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(small) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t odd = (magnitude >> 13) & 1;
  const std::uint32_t normal = (magnitude - (std::uint32_t{112} << 23) + 0xfff + odd) >> 13;
  std::uint32_t half = magnitude < (std::uint32_t{113} << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // from 65520 on: infinite
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<std::uint16_t>(half | sign >> 16);
}

float from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, shifted = (half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(shifted) * 0x1p112f;  // subnormals, too, come out right
  const std::uint32_t magnitude = shifted >= 0x0f800000 ? shifted | 0x7f800000 : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace

void to_half(Precision precision, std::span<const float> values, float factor, std::span<std::uint16_t> out) {
  const float* const __restrict in = values.data();
  std::uint16_t* const __restrict to = out.data();
  const std::size_t count = values.size();
  if (precision == Precision::bf16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_bf16(factor * in[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_f16(factor * in[i]);
  }
}

void from_half(Precision precision, std::span<const std::uint16_t> values, std::span<float> out) {
  const std::uint16_t* const __restrict in = values.data();
  float* const __restrict to = out.data();
  const std::size_t count = values.size();
  if (precision == Precision::bf16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from_bf16(in[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = from_f16(in[i]);
  }
}

}  // namespace kolo::models
