#pragma once

// Vectors of `vector_bytes`, which the including file has defined (see reduce_lanes.h), and their conversions to and
// from bfloat16.

#include <cstdint>
#include <cstring>

#include <kolo/float16.h>

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

inline Vector<float> widen_bf16(HalfVector halves) {
  return detail::widen_bf16<Vector<float>>(__builtin_convertvector(halves, Bits));
}

inline HalfVector narrow_bf16(Vector<float> values) {
  return __builtin_convertvector(detail::narrow_bf16<Bits>(values), HalfVector);
}

/// The processor's conversion keeps what fits of a NaN's payload: to_float16() has one NaN of each sign.
inline HalfVector without_payload(HalfVector halves) {
  const HalfVector magnitude = halves & 0x7fff;
  return halves & ((magnitude > 0x7c00) ? HalfVector{} + 0xfe00 : HalfVector{} + 0xffff);
}

}  // namespace
}  // namespace kolo
