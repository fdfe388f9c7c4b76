#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <type_traits>

#include <kolo/detail/hash.h>
#include <kolo/float16.h>

#include "ops/kernels/reduce.h"

namespace kolo {

__extension__ using Wide = __int128;

template <class T>
inline constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// How far the bits of a reduction may be from the reference's where the order of additions, or the type of sums, is
/// another one.
template <class T>
double rounding_of(const Reduction& how, std::size_t ranks, double magnitude) {
  const double unit = std::is_same_v<T, BFloat16>  ? 0x1p-7
                      : std::is_same_v<T, Float16> ? 0x1p-10
                      : std::is_same_v<T, float>   ? 0x1p-23
                                                   : 0x1p-52;
  const double smallest = std::is_same_v<T, Float16> ? 0x1p-24 : std::is_same_v<T, double> ? 0x1p-1074 : 0x1p-133;
  return unit * static_cast<double>(ranks + 2) * magnitude + 16 * smallest * std::abs(how.postscale);
}

template <class Number>
Number reference_combine(ReduceOp op, Number a, Number b) {
  switch (op) {
    case ReduceOp::min: return a < b ? a : b;
    case ReduceOp::max: return a > b ? a : b;
    case ReduceOp::product: return a * b;
    default: return a + b;
  }
}

/// Floats: in rank order, in the accumulator's type, one rounding at the end.
template <class Number, class T, class Widen>
Number reference_float(const Reduction& how, std::span<const T> inputs, Widen widen) {
  const auto scaled = [&](T value) { return static_cast<Number>(widen(value) * static_cast<Number>(how.prescale)); };
  Number total = scaled(inputs[0]);
  for (const T value : inputs.subspan(1)) {
    const Number next = scaled(value);
    const bool compares = how.op == ReduceOp::min || how.op == ReduceOp::max;
    if (compares && (std::isnan(total) || std::isnan(next)))
      total = std::numeric_limits<Number>::quiet_NaN();
    else
      total = reference_combine(how.op, total, next);
  }
  if (how.op == ReduceOp::average) total /= static_cast<Number>(how.divide_by);
  return total * static_cast<Number>(how.postscale);
}

/// Integers: exactly, in 128 bits. Of a product only the low 64 bits count, so it is made of unsigned factors and cut.
template <class T>
T reference_integer(const Reduction& how, std::span<const T> inputs) {
  using Limits = std::numeric_limits<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  const auto truncated = [](double value) -> Wide {
    if (value >= static_cast<double>(Limits::max())) return Limits::max();
    if (value <= static_cast<double>(Limits::min())) return Limits::min();
    return static_cast<Wide>(value);
  };
  const auto scaled = [&](Wide value, double factor) {
    return factor == 1 ? value : truncated(static_cast<double>(value) * factor);
  };
  Wide total = scaled(inputs[0], how.prescale);
  for (const T value : inputs.subspan(1)) {
    const Wide next = scaled(value, how.prescale);
    if (how.op == ReduceOp::product)
      total = static_cast<std::uint64_t>(total) * static_cast<std::uint64_t>(next);
    else
      total = reference_combine<Wide>(how.op, total, next);
  }
  if (how.op == ReduceOp::average) total /= how.divide_by;
  if (how.postscale != 1) {
    // The accumulator has 64 bits, of the type's signedness.
    const auto low = static_cast<std::uint64_t>(total);
    total = std::is_signed_v<T> ? static_cast<Wide>(static_cast<std::int64_t>(low)) : static_cast<Wide>(low);
    total = scaled(total, how.postscale);
  }
  return static_cast<T>(static_cast<std::uint64_t>(total));
}

/// Bits and truths, on unsigned numbers as wide as T.
template <class T>
T reference_bits(ReduceOp op, std::span<const T> inputs) {
  bool all = true;
  bool any = false;
  std::uint64_t conjunction = ~std::uint64_t{0}, disjunction = 0, parity = 0;
  for (const T value : inputs) {
    const auto bits = static_cast<std::uint64_t>(value);
    all = all && bits != 0;
    any = any || bits != 0;
    conjunction &= bits;
    disjunction |= bits;
    parity ^= bits;
  }
  switch (op) {
    case ReduceOp::bit_and: return static_cast<T>(conjunction);
    case ReduceOp::bit_or: return static_cast<T>(disjunction);
    case ReduceOp::bit_xor: return static_cast<T>(parity);
    case ReduceOp::max:
    case ReduceOp::logical_or: return static_cast<T>(any);
    default: return static_cast<T>(all);
  }
}

/// What one element must become, computed in the most obvious way. `inputs` are the ranks' values in order.
template <class T>
T reference_reduce(const Reduction& how, std::span<const T> inputs) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(reference_float<float>(how, inputs, [](T value) { return to_float(value); }));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(reference_float<float>(how, inputs, [](T value) { return to_float(value); }));
  } else if constexpr (std::is_floating_point_v<T>) {
    return reference_float<T>(how, inputs, [](T value) { return value; });
  } else if (std::is_same_v<T, bool> || is_bitwise(how.op) || is_logical(how.op)) {
    return reference_bits(how.op, inputs);
  } else {
    return reference_integer(how, inputs);
  }
}

/// A value that depends on its four coordinates only. Floats within [-2, 2) with full mantissas, integers of the whole
/// range.
template <class T>
T element_value(std::uint64_t seed, std::uint64_t rank, std::uint64_t tensor, std::uint64_t index) {
  const std::uint64_t bits =
      detail::mixed(seed * 0x9e3779b97f4a7c15u + rank * 0xbf58476d1ce4e5b9u + tensor * 0x94d049bb133111ebu + index);
  const double number = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-62;
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(static_cast<float>(number));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(static_cast<float>(number));
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(number);
  else if constexpr (std::is_same_v<T, bool>)
    return (bits & 1) != 0;
  else
    return static_cast<T>(bits);
}

}  // namespace kolo
