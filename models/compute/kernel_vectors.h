#pragma once

// Vectors of `vector_bytes`, defined by the including file. That file is compiled for one instruction set, so
// everything here has internal linkage. The partial vector at the end of a row takes the same code, filled up with 0.

#include <math.h>  // NOLINT(modernize-deprecated-headers): functions of C, none of them inline

#include <cstdint>
#include <cstring>

#include <kolo/float16.h>

#include "models/compute/kernels.h"

namespace kolo::models {
namespace {

typedef float Floats __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t Words __attribute__((vector_size(vector_bytes)));
typedef std::int32_t Integers __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t Halves __attribute__((vector_size(vector_bytes / 2)));

inline constexpr std::int64_t lanes = vector_bytes / sizeof(float);

struct Full {};  ///< all lanes of a vector
struct Part {    ///< its first `count` lanes
  std::int64_t count;
};

/// A number that is known to the compiler.
template <int number>
struct Count {
  static constexpr int value = number;
};

/// Calls body(i, Full or Part) for the vectors of a row.
template <class Body>
inline void over(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Full{});
  if (i < count) body(i, Part{count - i});
}

template <class Vector>
inline Vector load_bytes(const void* from, Full) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}
template <class Vector>
inline Vector load_bytes(const void* from, Part part) {
  Vector vector{};
  std::memcpy(&vector, from, static_cast<std::size_t>(part.count) * sizeof(vector) / lanes);
  return vector;
}
template <class Vector>
inline void store_bytes(void* to, const Vector& vector, Full) {
  std::memcpy(to, &vector, sizeof(vector));
}
template <class Vector>
inline void store_bytes(void* to, const Vector& vector, Part part) {
  std::memcpy(to, &vector, static_cast<std::size_t>(part.count) * sizeof(vector) / lanes);
}

template <class Extent>
inline Floats load(const float* from, Extent extent) {
  return load_bytes<Floats>(from, extent);
}
template <class Extent>
inline void store(float* to, Floats values, Extent extent) {
  store_bytes(to, values, extent);
}

inline Floats all(float value) {
  return Floats{} + value;
}
inline Floats larger(Floats a, Floats b) {
  return a > b ? a : b;
}

/// Sets the lanes beyond a partial vector to `value`.
inline Floats fill(Floats values, Full, float) {
  return values;
}
inline Floats fill(Floats values, Part part, float value) {
  for (std::int64_t lane = part.count; lane < lanes; ++lane) values[lane] = value;
  return values;
}

/// The sum of the lanes, always in the same order: halves are added until one lane is left.
inline float sum_of(Floats values) {
  float lane[lanes];
  std::memcpy(lane, &values, sizeof(values));
  for (std::int64_t width = lanes / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

inline float largest_of(Floats values) {
  float lane[lanes];
  std::memcpy(lane, &values, sizeof(values));
  for (std::int64_t width = lanes / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  }
  return lane[0];
}

/// e^x within 2 units in the last place; 0 below -87, and x above 88 counts as 88. x = n·ln 2 + r, |r| ≤ ln 2 / 2; e^r
/// by the polynomial of Cephes' expf, times 2^n in the exponent's bits. Adding 1.5·2^23 rounds to a whole number.
inline Floats exponential(Floats x) {
  constexpr float whole = 12582912.0f;
  const Floats low = all(-87.0f), high = all(88.0f);
  const Floats bounded = x > high ? high : (x < low ? low : x);  // a NaN stays one
  const Floats shifted = bounded * 1.44269504088896341f + whole;
  const Floats n = shifted - whole;
  const Floats r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Words power = (reinterpret_cast<Words>(shifted) << 23) + reinterpret_cast<Words>(p);
  const Floats result = reinterpret_cast<Floats>(power);
  return x < low ? Floats{} : result;
}

/// Loads and stores MatmulItems. f32: unchanged.
struct F32 {
  template <class Extent>
  static Floats load(const MatmulItem* from, std::int64_t at, Extent extent) {
    return load_bytes<Floats>(reinterpret_cast<const float*>(from) + at, extent);
  }
  template <class Extent>
  static void store(MatmulItem* to, std::int64_t at, Floats values, Extent extent) {
    store_bytes(reinterpret_cast<float*>(to) + at, values, extent);
  }
};

/// 16-bit floats, converted by <kolo/float16.h>.
template <class Format>
struct Half {
  template <class Extent>
  static Floats load(const MatmulItem* from, std::int64_t at, Extent extent) {
    const auto halves = load_bytes<Halves>(reinterpret_cast<const std::uint16_t*>(from) + at, extent);
    return Format::widen(__builtin_convertvector(halves, Words));
  }
  template <class Extent>
  static void store(MatmulItem* to, std::int64_t at, Floats values, Extent extent) {
    const Halves halves = __builtin_convertvector(Format::narrow(values), Halves);
    store_bytes(reinterpret_cast<std::uint16_t*>(to) + at, halves, extent);
  }
};

struct Bf16Format {
  static Floats widen(Words halves) { return detail::widen_bf16<Floats>(halves); }
  static Words narrow(Floats values) { return detail::narrow_bf16<Words>(values); }
};
struct F16Format {
  static Floats widen(Words halves) { return detail::widen_f16<Floats>(halves); }
  static Words narrow(Floats values) { return detail::narrow_f16<Words>(values); }
};

using Bf16 = Half<Bf16Format>;
using F16 = Half<F16Format>;

}  // namespace
}  // namespace kolo::models
