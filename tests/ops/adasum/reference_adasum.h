#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/ops/kernels/element_types.h"

namespace kolo {

/// Has the range for products of any two f64.
using LongVector = std::vector<long double>;

/// Of two vectors, by the formula.
inline LongVector reference_adasum(const LongVector& a, const LongVector& b) {
  long double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
  }
  const long double factor_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const long double factor_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  LongVector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = factor_a * a[i] + factor_b * b[i];
  return sum;
}

/// Of several: neighbours first.
inline LongVector reference_adasum(std::vector<LongVector> vectors) {
  while (vectors.size() > 1) {
    std::vector<LongVector> above;
    for (std::size_t i = 0; i < vectors.size(); i += 2) {
      above.push_back(i + 1 < vectors.size() ? reference_adasum(vectors[i], vectors[i + 1]) : vectors[i]);
    }
    vectors = std::move(above);
  }
  return vectors.front();
}

/// How far a result that was rounded once may be from `exact`, where values as large as `largest` were added in f64.
template <class T>
long double tolerance(long double exact, long double largest) {
  const long double added = largest * 1e-13L;
  if constexpr (std::is_same_v<T, double>) return added + std::numeric_limits<double>::denorm_min();
  const int digits = std::is_same_v<T, float> ? 24 : std::is_same_v<T, Float16> ? 11 : 8;
  const int lowest = std::is_same_v<T, Float16> ? -14 : -126;  // exponent of the smallest number with all its digits
  const int exponent = exact == 0 ? lowest : std::max(std::ilogb(exact), lowest);
  return std::ldexp(0.5L, exponent - digits + 1) + added;
}

inline long double largest_of(const LongVector& values) {
  long double largest = 0;
  for (const long double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace kolo
