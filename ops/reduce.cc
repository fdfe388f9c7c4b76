// A range is reduced in blocks whose accumulators stay in the first-level cache. Per block: the first source is loaded
// into `total`, each further source is combined into it in turn, then `total` is divided and scaled, rounded to the
// element type and stored to all destinations. All sources of a block are read before a destination is written, hence
// in-place works; and no step mixes elements, hence cutting a range changes nothing. Built without contraction to fused
// multiply-adds, so that an element in a vectorised loop and one in its tail get the same bits.

#include "ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/float16.h"

namespace kolo {
namespace {

constexpr std::size_t block_elements = 1024;

__extension__ using Int128 = __int128;

// How elements of type T are accumulated: the accumulator's type, and the conversions.
template <class T>
struct Arithmetic {
  using Total = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  static Total widen(T value) { return value; }
  static T narrow(Total value) { return static_cast<T>(value); }
};
template <>
struct Arithmetic<double> {
  using Total = double;
  static double widen(double value) { return value; }
  static double narrow(double value) { return value; }
};
template <>
struct Arithmetic<float> {
  using Total = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};
template <>
struct Arithmetic<Float16> {
  using Total = float;
  static float widen(Float16 value) { return to_float(value); }
  static Float16 narrow(float value) { return to_float16(value); }
};
template <>
struct Arithmetic<BFloat16> {
  using Total = float;
  static float widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(float value) { return to_bfloat16(value); }
};

// A bool as bytes: whatever is not zero is true (a bool with such a byte cannot be read as one).
struct Truth {
  std::uint8_t byte;
};
template <>
struct Arithmetic<Truth> {
  using Total = std::uint64_t;
  static std::uint64_t widen(Truth value) { return value.byte != 0; }
  static Truth narrow(std::uint64_t value) { return {static_cast<std::uint8_t>(value)}; }
};

// An average is exact: a sum of 64-bit integers needs 128 bits.
template <class T, ReduceOp op>
using Total = std::conditional_t<std::is_integral_v<T> && sizeof(T) == 8 && op == ReduceOp::average, Int128,
                                 typename Arithmetic<T>::Total>;

// Signed overflow is undefined in C++, that of unsigned types wraps: 64-bit sums and products take the detour.
template <class Number>
Number add(Number a, Number b) {
  if constexpr (std::is_same_v<Number, std::int64_t>) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class Number>
Number multiply(Number a, Number b) {
  if constexpr (std::is_same_v<Number, std::int64_t>) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// A comparison with a NaN is false: `b` is then taken, so only a NaN in `a` needs the second test.
template <ReduceOp op, class Number>
Number combine(Number a, Number b) {
  if constexpr (op == ReduceOp::min)
    return (a < b) | (a != a) ? a : b;
  else if constexpr (op == ReduceOp::max)
    return (a > b) | (a != a) ? a : b;
  else if constexpr (op == ReduceOp::product)
    return multiply(a, b);
  else if constexpr (op == ReduceOp::bit_and || op == ReduceOp::logical_and)
    return a & b;
  else if constexpr (op == ReduceOp::bit_or || op == ReduceOp::logical_or)
    return a | b;
  else if constexpr (op == ReduceOp::bit_xor)
    return a ^ b;
  else
    return add(a, b);
}

// Truncates toward zero; what a 64-bit `Integer` cannot hold becomes the nearest value that it can, a NaN zero.
template <class Integer>
Integer truncate(double value) {
  using Limits = std::numeric_limits<Integer>;
  constexpr double beyond = std::is_signed_v<Integer> ? 0x1p63 : 0x1p64;
  if (value >= beyond) return Limits::max();
  if (value >= static_cast<double>(Limits::min())) return static_cast<Integer>(value);
  return value != value ? 0 : Limits::min();
}

// Scales a value of the accumulator's type `Number`, which for integers of type T has 64 bits or more.
template <class T, class Number>
Number scale(Number value, double factor) {
  if constexpr (std::is_floating_point_v<Number>)
    return value * static_cast<Number>(factor);
  else
    return truncate<typename Arithmetic<T>::Total>(static_cast<double>(value) * factor);
}

// Element i as what is accumulated; elements lie in bytes whose alignment nobody promises.
template <class T, ReduceOp op>
typename Arithmetic<T>::Total load(const std::byte* elements, std::size_t i) {
  T value;
  std::memcpy(&value, elements + i * sizeof(T), sizeof(T));
  if constexpr (is_logical(op))
    return Arithmetic<T>::widen(value) != 0;
  else
    return Arithmetic<T>::widen(value);
}

template <class T, ReduceOp op>
class Block {
 public:
  using Number = Total<T, op>;

  void assign(const std::byte* source, std::size_t count) {
    Number* __restrict total = total_;
    for (std::size_t i = 0; i < count; ++i) total[i] = load<T, op>(source, i);
  }
  void assign(const std::byte* source, std::size_t count, double factor) {
    Number* __restrict total = total_;
    for (std::size_t i = 0; i < count; ++i)
      total[i] = scale<T, Number>(load<T, op>(source, i), factor);
  }
  void combine_with(const std::byte* source, std::size_t count) {
    Number* __restrict total = total_;
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = combine<op, Number>(total[i], load<T, op>(source, i));
    }
  }
  void combine_with(const std::byte* source, std::size_t count, double factor) {
    Number* __restrict total = total_;
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = combine<op, Number>(total[i], scale<T, Number>(load<T, op>(source, i), factor));
    }
  }
  void divide(std::size_t count, int divide_by) {
    const auto divisor = static_cast<Number>(divide_by);
    for (std::size_t i = 0; i < count; ++i) total_[i] /= divisor;
  }
  void multiply_by(std::size_t count, double factor) {
    for (std::size_t i = 0; i < count; ++i) total_[i] = scale<T, Number>(total_[i], factor);
  }
  void store(std::byte* destination, std::size_t count) const {
    const Number* __restrict total = total_;
    for (std::size_t i = 0; i < count; ++i) {
      const T value = Arithmetic<T>::narrow(static_cast<typename Arithmetic<T>::Total>(total[i]));
      std::memcpy(destination + i * sizeof(T), &value, sizeof(T));
    }
  }

 private:
  alignas(64) Number total_[block_elements];
};

template <class T, ReduceOp op>
void reduce_blocks(const Reduction& reduction, std::span<const void* const> sources,
                   std::span<void* const> destinations, std::size_t count) {
  Block<T, op> block;
  for (std::size_t begin = 0; begin < count; begin += block_elements) {
    const std::size_t length = std::min(block_elements, count - begin);
    const auto source = [&](std::size_t i) { return static_cast<const std::byte*>(sources[i]) + begin * sizeof(T); };
    const auto destination = [&](std::size_t i) {
      return static_cast<std::byte*>(destinations[i]) + begin * sizeof(T);
    };
    if (reduction.prescale == 1) {
      block.assign(source(0), length);
      for (std::size_t i = 1; i < sources.size(); ++i) block.combine_with(source(i), length);
    } else {
      block.assign(source(0), length, reduction.prescale);
      for (std::size_t i = 1; i < sources.size(); ++i) block.combine_with(source(i), length, reduction.prescale);
    }
    if (op == ReduceOp::average && reduction.divide_by != 1) block.divide(length, reduction.divide_by);
    if (reduction.postscale != 1) block.multiply_by(length, reduction.postscale);
    block.store(destination(0), length);
    for (std::size_t i = 1; i < destinations.size(); ++i) {
      std::memcpy(destination(i), destination(0), length * sizeof(T));
    }
  }
}

template <class T, ReduceOp op>
void reduce_with(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count) {
  constexpr DType dtype = DTypeOf<std::conditional_t<std::is_same_v<T, Truth>, bool, T>>::value;
  if constexpr (reducible(op, dtype)) reduce_blocks<T, op>(reduction, sources, destinations, count);
}

template <class T>
void reduce_as(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> destinations,
               std::size_t count) {
  switch (reduction.op) {
    case ReduceOp::sum: return reduce_with<T, ReduceOp::sum>(reduction, sources, destinations, count);
    case ReduceOp::average: return reduce_with<T, ReduceOp::average>(reduction, sources, destinations, count);
    case ReduceOp::min: return reduce_with<T, ReduceOp::min>(reduction, sources, destinations, count);
    case ReduceOp::max: return reduce_with<T, ReduceOp::max>(reduction, sources, destinations, count);
    case ReduceOp::product: return reduce_with<T, ReduceOp::product>(reduction, sources, destinations, count);
    case ReduceOp::bit_and: return reduce_with<T, ReduceOp::bit_and>(reduction, sources, destinations, count);
    case ReduceOp::bit_or: return reduce_with<T, ReduceOp::bit_or>(reduction, sources, destinations, count);
    case ReduceOp::bit_xor: return reduce_with<T, ReduceOp::bit_xor>(reduction, sources, destinations, count);
    case ReduceOp::logical_and: return reduce_with<T, ReduceOp::logical_and>(reduction, sources, destinations, count);
    case ReduceOp::logical_or: return reduce_with<T, ReduceOp::logical_or>(reduction, sources, destinations, count);
    case ReduceOp::adasum: return;  // never reducible()
  }
}

// A single source that nothing changes, as in a world of one.
bool is_copy(const Reduction& reduction, std::size_t sources) {
  if (is_logical(reduction.op) || reduction.dtype == DType::boolean) return false;  // these give 0 or 1
  const bool divides = reduction.op == ReduceOp::average && reduction.divide_by != 1;
  return sources == 1 && reduction.prescale == 1 && reduction.postscale == 1 && !divides;
}

}  // namespace

Reduction reduction_of(const Signature& signature, int ranks, std::size_t absent) {
  const int divide_by = signature.divide_by_group ? ranks : ranks - static_cast<int>(absent);
  return {signature.dtype, signature.op, signature.prescale, signature.postscale, divide_by};
}

Reduction reduction_of(const Bucket& bucket, int ranks) {
  Reduction reduction = reduction_of(bucket.signature, ranks, bucket.absent.size());
  if (bucket.divide_by != 0) reduction.divide_by = bucket.divide_by;
  return reduction;
}

void reduce(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count) {
  if (count == 0) return;
  if (is_copy(reduction, sources.size())) {
    for (void* destination : destinations) {
      if (destination != sources[0]) std::memcpy(destination, sources[0], count * size_of(reduction.dtype));
    }
    return;
  }
  switch (reduction.dtype) {
    case DType::f64: return reduce_as<double>(reduction, sources, destinations, count);
    case DType::f32: return reduce_as<float>(reduction, sources, destinations, count);
    case DType::f16: return reduce_as<Float16>(reduction, sources, destinations, count);
    case DType::bf16: return reduce_as<BFloat16>(reduction, sources, destinations, count);
    case DType::i64: return reduce_as<std::int64_t>(reduction, sources, destinations, count);
    case DType::i32: return reduce_as<std::int32_t>(reduction, sources, destinations, count);
    case DType::i16: return reduce_as<std::int16_t>(reduction, sources, destinations, count);
    case DType::i8: return reduce_as<std::int8_t>(reduction, sources, destinations, count);
    case DType::u64: return reduce_as<std::uint64_t>(reduction, sources, destinations, count);
    case DType::u32: return reduce_as<std::uint32_t>(reduction, sources, destinations, count);
    case DType::u16: return reduce_as<std::uint16_t>(reduction, sources, destinations, count);
    case DType::u8: return reduce_as<std::uint8_t>(reduction, sources, destinations, count);
    case DType::boolean: return reduce_as<Truth>(reduction, sources, destinations, count);
  }
}

}  // namespace kolo
