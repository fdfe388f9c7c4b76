// Averages of integers, and integers that are scaled, are accumulated in 64 bits (an average of 64-bit integers in
// 128). A range is reduced in blocks whose accumulators stay in the first-level cache. Per block: the first source is
// loaded into `total`, each further source is combined into it in turn, then `total` is divided and scaled, cut to the
// element type and stored. All sources of a block are read before the outputs are written.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/kernels/reduce_kernels.h"

namespace kolo {
namespace {

constexpr std::size_t block_elements = 1024;

__extension__ using Int128 = __int128;

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;

// An average is exact: a sum of 64-bit integers needs 128 bits.
template <class T, ReduceOp op>
using Total = std::conditional_t<sizeof(T) == 8 && op == ReduceOp::average, Int128, Wide<T>>;

// Signed overflow is undefined in C++, that of unsigned types wraps: 64-bit sums and products take the detour.
template <ReduceOp op, class Number>
Number combine(Number a, Number b) {
  using Wrapping = std::conditional_t<std::is_same_v<Number, std::int64_t>, std::uint64_t, Number>;
  if constexpr (op == ReduceOp::min)
    return a < b ? a : b;
  else if constexpr (op == ReduceOp::max)
    return a > b ? a : b;
  else if constexpr (op == ReduceOp::product)
    return static_cast<Number>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
  else
    return static_cast<Number>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
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

template <class T, class Number>
Number scale(Number value, double factor) {
  return truncate<Wide<T>>(static_cast<double>(value) * factor);
}

template <class T, ReduceOp op>
void run(const Reduction& how, const void* const* sources, std::size_t ranks, std::size_t at,
         const ReduceOutputs& outputs, std::size_t count) {
  using Number = Total<T, op>;
  alignas(64) Number total[block_elements];
  for (std::size_t begin = 0; begin < count; begin += block_elements) {
    const std::size_t length = std::min(block_elements, count - begin);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto* source = static_cast<const std::byte*>(sources[rank]) + at + begin * sizeof(T);
      for (std::size_t i = 0; i < length; ++i) {
        T element;
        std::memcpy(&element, source + i * sizeof(T), sizeof(T));
        Number value = static_cast<Wide<T>>(element);
        if (how.prescale != 1) value = scale<T, Number>(value, how.prescale);
        total[i] = rank == 0 ? value : combine<op>(total[i], value);
      }
    }
    for (std::size_t i = 0; i < length; ++i) {
      if (op == ReduceOp::average) total[i] /= static_cast<Number>(how.divide_by);
      if (how.postscale != 1) total[i] = scale<T, Number>(total[i], how.postscale);
      const auto element = static_cast<T>(static_cast<Wide<T>>(total[i]));
      for (void* const output : {outputs.first, outputs.second}) {
        if (output) std::memcpy(static_cast<std::byte*>(output) + (begin + i) * sizeof(T), &element, sizeof(T));
      }
    }
  }
}

template <class T>
ReduceKernel kernel_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return run<T, ReduceOp::sum>;
    case ReduceOp::average: return run<T, ReduceOp::average>;
    case ReduceOp::min: return run<T, ReduceOp::min>;
    case ReduceOp::max: return run<T, ReduceOp::max>;
    case ReduceOp::product: return run<T, ReduceOp::product>;
    default: return nullptr;
  }
}

}  // namespace

ReduceKernel wide_kernel(const Reduction& how) {
  switch (how.dtype) {
    case DType::i64: return kernel_of<std::int64_t>(how.op);
    case DType::i32: return kernel_of<std::int32_t>(how.op);
    case DType::i16: return kernel_of<std::int16_t>(how.op);
    case DType::i8: return kernel_of<std::int8_t>(how.op);
    case DType::u64: return kernel_of<std::uint64_t>(how.op);
    case DType::u32: return kernel_of<std::uint32_t>(how.op);
    case DType::u16: return kernel_of<std::uint16_t>(how.op);
    case DType::u8: return kernel_of<std::uint8_t>(how.op);
    default: return nullptr;
  }
}

}  // namespace kolo
