#pragma once

// Vectors of `vector_bytes`, which the including file has defined (see reduce_lanes.h), and conversions of 16-bit
// floats that need no instructions of their own: those of float16.h, on every lane.

#include <cstdint>
#include <cstring>

#include <kolo/dtype.h>

namespace kolo {
namespace {

template <class T, std::size_t bytes>
struct VectorType {
  typedef T type
      __attribute__((vector_size(bytes)));  // an alias-declaration cannot carry a size that depends on a parameter
};
template <class T>
using Vector = typename VectorType<T, vector_bytes>::type;
using HalfVector = VectorType<std::uint16_t, vector_bytes / 2>::type;
using Bits = Vector<std::uint32_t>;

template <class Values>
Values load_vector(const void* elements) {
  Values values;
  std::memcpy(&values, elements, sizeof(values));
  return values;
}

inline Vector<float> as_floats(Bits bits) {
  return reinterpret_cast<Vector<float>>(bits);
}
inline Bits as_bits(Vector<float> values) {
  return reinterpret_cast<Bits>(values);
}
inline Bits all(std::uint32_t bits) {
  return Bits{} + bits;
}

[[maybe_unused]] Vector<float> widen_bf16(HalfVector halves) {
  return as_floats(__builtin_convertvector(halves, Bits) << 16);
}

[[maybe_unused]] HalfVector narrow_bf16(Vector<float> values) {
  const Bits bits = as_bits(values);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits quiet_nan = (bits >> 16) | 0x0040u;
  return __builtin_convertvector(values != values ? quiet_nan : rounded, HalfVector);
}

[[maybe_unused]] Vector<float> widen_f16_plain(HalfVector halves) {
  const Bits half = __builtin_convertvector(halves, Bits);
  const Bits sign = (half & 0x8000u) << 16;
  const Bits magnitude = half & 0x7fffu;
  const Bits shifted = magnitude << 13;
  const Bits subnormal = as_bits(as_floats(shifted + 0x38800000u) - 0x1p-14f);
  const Bits finite = magnitude < 0x0400u ? subnormal : shifted + 0x38000000u;
  const Bits special = shifted | (magnitude > 0x7c00u ? all(0x7fc00000u) : all(0x7f800000u));
  return as_floats(sign | (magnitude >= 0x7c00u ? special : finite));
}

[[maybe_unused]] HalfVector narrow_f16_plain(Vector<float> values) {
  const Bits bits = as_bits(values);
  const Bits sign = (bits >> 16) & 0x8000u;
  const Bits magnitude = bits & 0x7fffffffu;
  const Bits normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const Bits small = magnitude < 0x38800000u ? magnitude : Bits{};
  const Bits subnormal = as_bits(as_floats(small) + 0.5f) - 0x3f000000u;
  const Bits special = magnitude > 0x7f800000u ? all(0x7e00u) : all(0x7c00u);
  const Bits finite = magnitude < 0x38800000u ? subnormal : normal;
  return __builtin_convertvector(sign | (magnitude >= 0x47800000u ? special : finite), HalfVector);
}

/// The processor's conversion keeps what fits of a NaN's payload: to_float16() has one NaN of each sign.
[[maybe_unused]] HalfVector without_payload(HalfVector halves) {
  const HalfVector magnitude = halves & 0x7fff;
  return halves & ((magnitude > 0x7c00) ? HalfVector{} + 0xfe00 : HalfVector{} + 0xffff);
}

}  // namespace
}  // namespace kolo
