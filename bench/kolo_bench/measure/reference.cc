// Each pass is one loop over the elements, which compilers can vectorise: the first input is widened, each other one is
// combined with what there is, and that is divided and narrowed.

#include "bench/kolo_bench/measure/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace kolo::bench {
namespace {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

/// The bits of 16-bit floats.
enum class F16 : std::uint16_t {};
enum class Bf16 : std::uint16_t {};
/// A truth: 0 or 1.
enum class Truth : std::uint8_t {};

/// bits / 2^dropped to nearest, ties to even.
std::uint32_t rounded(std::uint32_t bits, int dropped) {
  const std::uint32_t kept = bits >> dropped, rest = bits & ((1u << dropped) - 1), half = 1u << (dropped - 1);
  return kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0);
}

constexpr std::uint32_t f32_infinity = 0x7f800000, f16_infinity = 0x7c00, f16_bias_lacks = 112u << 23;

float widened(F16 value) {
  const auto bits = static_cast<std::uint32_t>(value), magnitude = bits & 0x7fffu;
  const float positive = magnitude < 0x400           ? static_cast<float>(magnitude) * 0x1p-24f
                         : magnitude >= f16_infinity ? std::bit_cast<float>(f32_infinity | magnitude << 13)
                                                     : std::bit_cast<float>((magnitude << 13) + f16_bias_lacks);
  return bits & 0x8000u ? -positive : positive;
}
float widened(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}
template <class T>
T widened(T value) {
  return value;
}

void narrow(float value, F16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const std::uint32_t positive = magnitude < std::bit_cast<std::uint32_t>(0x1p-14f)
                                     ? static_cast<std::uint32_t>(std::nearbyint(std::abs(value) * 0x1p24f))
                                     : std::min(rounded(magnitude - f16_bias_lacks, 13), f16_infinity);
  to = static_cast<F16>(positive | (bits >> 16 & 0x8000u));
}
void narrow(float value, Bf16& to) {
  to = static_cast<Bf16>(rounded(std::bit_cast<std::uint32_t>(value), 16));
}
template <class Number, class T>
void narrow(Number value, T& to) {
  to = static_cast<T>(value);
}

/// Combines in the type of the totals. `Number` is unsigned where it wraps, `Ordered` the type that min and max compare
/// and averages divide in.
template <class T, class Number, class Ordered>
class Reference {
 public:
  Reference(std::span<const std::byte* const> inputs, std::int64_t count)
      : inputs_(inputs), totals_(static_cast<std::size_t>(count)) {}

  void reduce(ReduceOp op) {
    const auto ordered = [](Number a) { return static_cast<Ordered>(a); };
    switch (op) {
      case ReduceOp::sum: return run([](Number a, Number b) { return a + b; });
      case ReduceOp::average:
        run([](Number a, Number b) { return a + b; });
        for (Number& total : totals_)
          total = static_cast<Number>(ordered(total) / static_cast<Ordered>(inputs_.size()));
        return;
      case ReduceOp::product: return run([](Number a, Number b) { return a * b; });
      case ReduceOp::min: return run([&](Number a, Number b) { return ordered(a) < ordered(b) ? a : b; });
      case ReduceOp::max: return run([&](Number a, Number b) { return ordered(a) > ordered(b) ? a : b; });
      default: break;
    }
    if constexpr (std::is_floating_point_v<Number>) {
      throw std::logic_error("floats have no bits to combine");
    } else {
      switch (op) {
        case ReduceOp::bit_and: return run([](Number a, Number b) { return a & b; });
        case ReduceOp::bit_or: return run([](Number a, Number b) { return a | b; });
        case ReduceOp::bit_xor: return run([](Number a, Number b) { return a ^ b; });
        case ReduceOp::logical_and: return run([](Number a, Number b) { return Number{a != 0 && b != 0}; });
        case ReduceOp::logical_or: return run([](Number a, Number b) { return Number{a != 0 || b != 0}; });
        default: throw std::logic_error("no such reduction");
      }
    }
  }

  void write(std::byte* result) const {
    T* const to = reinterpret_cast<T*>(result);
    for (std::size_t i = 0; i < totals_.size(); ++i) narrow(totals_[i], to[i]);
  }

 private:
  static Number load(const std::byte* input, std::size_t index) {
    T value;
    std::memcpy(&value, input + index * sizeof(T), sizeof(T));
    return static_cast<Number>(widened(value));
  }

  template <class Combine>
  void run(Combine combine) {
    for (std::size_t i = 0; i < totals_.size(); ++i) totals_[i] = load(inputs_[0], i);
    for (const std::byte* input : inputs_.subspan(1)) {
      for (std::size_t i = 0; i < totals_.size(); ++i) totals_[i] = combine(totals_[i], load(input, i));
    }
  }

  std::span<const std::byte* const> inputs_;
  std::vector<Number> totals_;
};

template <class T, class Number, class Ordered>
void reduce_as(ReduceOp op, std::span<const std::byte* const> inputs, std::int64_t count, std::byte* result) {
  const std::byte* const twice[] = {inputs[0], inputs[0]};  // a logical operation says 0 or 1 of a single input, too
  const bool alone = inputs.size() == 1 && (op == ReduceOp::logical_and || op == ReduceOp::logical_or);
  Reference<T, Number, Ordered> reference(alone ? twice : inputs, count);
  reference.reduce(op);
  reference.write(result);
}

template <class T>
void reduce_integers(ReduceOp op, std::span<const std::byte* const> inputs, std::int64_t count, std::byte* result) {
  constexpr bool has_sign = std::is_signed_v<T>;
  if (sizeof(T) == 8 && op == ReduceOp::average)  // the sum does not fit into 64 bits
    return reduce_as<T, UInt128, std::conditional_t<has_sign, Int128, UInt128>>(op, inputs, count, result);
  reduce_as<T, std::uint64_t, std::conditional_t<has_sign, std::int64_t, std::uint64_t>>(op, inputs, count, result);
}

/// Of truths the product and the least are "and", the greatest is "or".
ReduceOp truth_op(ReduceOp op) {
  if (op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::logical_and) return ReduceOp::bit_and;
  return op == ReduceOp::max || op == ReduceOp::logical_or ? ReduceOp::bit_or : op;
}

}  // namespace

void reference_reduction(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::int64_t count,
                         std::byte* result) {
  switch (dtype) {
    case DType::f64: return reduce_as<double, double, double>(op, inputs, count, result);
    case DType::f32: return reduce_as<float, float, float>(op, inputs, count, result);
    case DType::f16: return reduce_as<F16, float, float>(op, inputs, count, result);
    case DType::bf16: return reduce_as<Bf16, float, float>(op, inputs, count, result);
    case DType::i64: return reduce_integers<std::int64_t>(op, inputs, count, result);
    case DType::i32: return reduce_integers<std::int32_t>(op, inputs, count, result);
    case DType::i16: return reduce_integers<std::int16_t>(op, inputs, count, result);
    case DType::i8: return reduce_integers<std::int8_t>(op, inputs, count, result);
    case DType::u64: return reduce_integers<std::uint64_t>(op, inputs, count, result);
    case DType::u32: return reduce_integers<std::uint32_t>(op, inputs, count, result);
    case DType::u16: return reduce_integers<std::uint16_t>(op, inputs, count, result);
    case DType::u8: return reduce_integers<std::uint8_t>(op, inputs, count, result);
    case DType::boolean: return reduce_as<Truth, std::uint64_t, std::uint64_t>(truth_op(op), inputs, count, result);
  }
}

}  // namespace kolo::bench
