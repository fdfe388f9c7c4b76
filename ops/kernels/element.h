#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include <kolo/dtype.h>
#include <kolo/float16.h>
#include <kolo/op.h>

// What happens to one element, as constexpr templates: a GPU's kernels and tests on the host run the same functions.

namespace kolo {

__extension__ using Int128 = __int128;

template <class T>
inline constexpr bool is_half_type = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool is_integer_type = std::is_integral_v<T> && !std::is_same_v<T, bool>;

/// In what an element is accumulated: 16-bit floats in f32, integers in 64 bits, truths as 0 or 1.
template <class T>
using Accumulator = std::conditional_t<
    is_half_type<T>, float,
    std::conditional_t<std::is_floating_point_v<T>, T,
                       std::conditional_t<is_integer_type<T> && std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

template <class T>
constexpr Accumulator<T> widened(T value) {
  if constexpr (is_half_type<T>)
    return to_float(value);
  else
    return static_cast<Accumulator<T>>(value);
}

template <class T>
constexpr T narrowed(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(value);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(value);
  else if constexpr (std::is_same_v<T, bool>)
    return value != 0;
  else
    return static_cast<T>(value);
}

/// Truncates toward zero; what a 64-bit `Integer` cannot hold becomes the nearest value that it can, a NaN zero.
template <class Integer>
constexpr Integer truncated(double value) {
  using Limits = std::numeric_limits<Integer>;
  constexpr double beyond = std::is_signed_v<Integer> ? 0x1p63 : 0x1p64;
  if (value >= beyond) return Limits::max();
  if (value >= static_cast<double>(Limits::min())) return static_cast<Integer>(value);
  return value != value ? 0 : Limits::min();
}

/// Of an accumulator: floats are multiplied in their type, integers as f64 and truncated.
template <class Number>
constexpr Number scaled(Number value, double factor) {
  if (factor == 1) return value;
  if constexpr (std::is_floating_point_v<Number>)
    return value * static_cast<Number>(factor);
  else if constexpr (sizeof(Number) > 8)
    return truncated<std::int64_t>(static_cast<double>(value) * factor);
  else
    return truncated<Number>(static_cast<double>(value) * factor);
}

/// min and max of a NaN and anything are NaN; sums and products of integers wrap.
template <class Number>
constexpr Number combined(ReduceOp op, Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    const bool is_nan = a != a;  // NOLINT(misc-redundant-expression): std::isnan is not constexpr
    switch (op) {
      case ReduceOp::min: return a < b || is_nan ? a : b;
      case ReduceOp::max: return a > b || is_nan ? a : b;
      case ReduceOp::product: return a * b;
      default: return a + b;
    }
  } else {
    using Wrapping = std::conditional_t<std::is_same_v<Number, std::int64_t>, std::uint64_t, Number>;
    const auto first = static_cast<Wrapping>(a), second = static_cast<Wrapping>(b);
    switch (op) {
      case ReduceOp::min: return a < b ? a : b;
      case ReduceOp::max: return a > b ? a : b;
      case ReduceOp::product: return static_cast<Number>(first * second);
      case ReduceOp::bit_and: return static_cast<Number>(first & second);
      case ReduceOp::bit_or: return static_cast<Number>(first | second);
      case ReduceOp::bit_xor: return static_cast<Number>(first ^ second);
      case ReduceOp::logical_and: return a != 0 && b != 0 ? Number{1} : Number{0};
      case ReduceOp::logical_or: return a != 0 || b != 0 ? Number{1} : Number{0};
      default: return static_cast<Number>(first + second);
    }
  }
}

/// The op as it works on 0 and 1.
constexpr ReduceOp op_of_truths(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
    case ReduceOp::product:
    case ReduceOp::logical_and: return ReduceOp::bit_and;
    case ReduceOp::max:
    case ReduceOp::logical_or: return ReduceOp::bit_or;
    default: return op;
  }
}

/// A byte of a bool tensor: any but 0 is true.
struct Truth {
  std::uint8_t byte;
};

// Keys: unsigned integers that stand for floats, or truths, so that who only knows the maximum of integers finds the
// maximum or minimum of floats. NaN has the largest key, and 0 is below the key of every value.

template <class T>
using Key = std::conditional_t<std::is_same_v<T, Truth>, std::uint8_t,
                               std::conditional_t<sizeof(Accumulator<T>) == 8, std::uint64_t, std::uint32_t>>;

/// Of f32 or f64. `descending`: smaller values have larger keys.
template <class Float>
constexpr Key<Float> key_of(Float value, bool descending) {
  using Bits = Key<Float>;
  constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
  if (value != value) return ~Bits{0};  // NOLINT(misc-redundant-expression): std::isnan is not constexpr
  const auto bits = __builtin_bit_cast(Bits, value);
  const Bits key = (bits & sign) != 0 ? ~bits : bits | sign;
  return descending ? ~key : key;
}
template <class Float>
constexpr Float value_of_key(Key<Float> key, bool descending) {
  using Bits = Key<Float>;
  constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
  if (key == ~Bits{0}) return std::numeric_limits<Float>::quiet_NaN();
  if (descending) key = ~key;
  return __builtin_bit_cast(Float, (key & sign) != 0 ? key ^ sign : ~key);
}

/// What is done to each element on its way from one type to another: `To(From(x) * scale / divide_by)`, in the wider
/// one's accumulator. Both are floats or both integers; or one is a float, or bool, and the other the type of its key.
struct Conversion {
  DType from = DType::f32;
  DType to = DType::f32;
  double scale = 1;         ///< before the division
  int divide_by = 1;        ///< truncates integers
  double after = 1;         ///< multiplies the quotient
  bool descending = false;  ///< of keys

  constexpr bool is_copy() const { return from == to && scale == 1 && divide_by == 1 && after == 1; }
};

template <class T>
inline constexpr bool has_key = std::is_floating_point_v<T> || is_half_type<T> || std::is_same_v<T, Truth>;

template <class To, class From>
constexpr To converted_by_key(From value, const Conversion& how) {
  if constexpr (std::is_same_v<From, Truth>) {
    return (value.byte != 0) != how.descending ? 1 : 0;
  } else if constexpr (std::is_same_v<To, Truth>) {
    return Truth{static_cast<std::uint8_t>((value != 0) != how.descending ? 1 : 0)};
  } else if constexpr (has_key<From>) {
    return key_of(scaled(widened(value), how.scale), how.descending);
  } else {
    return narrowed<To>(scaled(value_of_key<Accumulator<To>>(value, how.descending), how.after));
  }
}

template <class To, class From>
constexpr To converted_in_kind(From value, const Conversion& how) {
  using Number =
      std::conditional_t<(sizeof(Accumulator<To>) > sizeof(Accumulator<From>)), Accumulator<To>, Accumulator<From>>;
  Number number = scaled(static_cast<Number>(widened(value)), how.scale);
  if (how.divide_by != 1) number /= static_cast<Number>(how.divide_by);
  return narrowed<To>(static_cast<Accumulator<To>>(scaled(number, how.after)));
}

template <class To, class From>
constexpr To converted(From value, const Conversion& how) {
  if constexpr (has_key<To> != has_key<From>) {
    return converted_by_key<To, From>(value, how);
  } else {
    return converted_in_kind<To, From>(value, how);
  }
}

/// What one element becomes in all: of `count` values, `value_at(i)` in the order of the ranks. As reduce() has it.
template <class T, class Values>
constexpr T reduced_element(ReduceOp op, double prescale, double postscale, int divide_by, int count, Values value_at) {
  if constexpr (std::is_same_v<T, bool>) {
    std::uint64_t total = value_at(0) ? 1 : 0;
    for (int i = 1; i < count; ++i) total = combined<std::uint64_t>(op_of_truths(op), total, value_at(i) ? 1 : 0);
    return total != 0;
  } else {
    using Number = std::conditional_t<is_integer_type<T> && sizeof(T) == 8, Int128, Accumulator<T>>;
    const auto number_at = [&](int i) { return static_cast<Number>(scaled(widened<T>(value_at(i)), prescale)); };
    Number total = number_at(0);
    if (is_logical(op)) total = total != Number{0} ? Number{1} : Number{0};
    const bool exact = op == ReduceOp::average;  // other sums of integers keep the low 64 bits
    for (int i = 1; i < count; ++i) {
      if constexpr (std::is_same_v<Number, Int128>) {
        total = exact ? total + number_at(i)
                      : static_cast<Number>(combined<Accumulator<T>>(op, static_cast<Accumulator<T>>(total),
                                                                     static_cast<Accumulator<T>>(number_at(i))));
      } else {
        total = combined<Number>(op, total, number_at(i));
      }
    }
    if (op == ReduceOp::average && divide_by != 1) total /= static_cast<Number>(divide_by);
    return narrowed<T>(scaled(static_cast<Accumulator<T>>(total), postscale));
  }
}

}  // namespace kolo
