// Exact floats are small integers: every partial sum fits into the mantissa for any number of ranks (ranks beyond its
// range contribute zeros); of a product only one rank has factors other than 1 and -1. Integers are small because
// kolo's sums wrap and those of some MPI libraries saturate.

#include "bench/kolo_bench/measure/values.h"

#include <algorithm>
#include <stdexcept>

#include <kolo/detail/hash.h>
#include <kolo/float16.h>

namespace kolo::bench {
namespace {

std::uint64_t bits_of(std::uint64_t seed, std::uint64_t rank, std::uint64_t index) {
  return detail::mixed(seed * 0x9e3779b97f4a7c15u + rank * 0xbf58476d1ce4e5b9u + index * 0x94d049bb133111ebu + 1);
}

template <class T>
T from_number(double number) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(static_cast<float>(number));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(static_cast<float>(number));
  else
    return static_cast<T>(number);
}

/// Integers up to which every one has a representation.
std::int64_t exact_integers(DType dtype) {
  switch (dtype) {
    case DType::f16: return 1 << 11;
    case DType::bf16: return 1 << 8;
    default: return 1 << 24;
  }
}

template <class T>
void write_floats(const Values& values, int rank, std::int64_t first, std::int64_t count, T* to) {
  const auto bits = [&](std::int64_t i) {
    return bits_of(values.seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(first + i));
  };
  const bool adds = reduces(values.kind) && (values.op == ReduceOp::sum || values.op == ReduceOp::average);
  const bool multiplies = reduces(values.kind) && values.op == ReduceOp::product;
  if (values.value_kind == ValueKind::full || !(adds || multiplies)) {  // within [-2, 2)
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = from_number<T>(static_cast<double>(static_cast<std::int64_t>(bits(i))) * 0x1p-62);
  } else if (multiplies) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t b = bits(i);
      to[i] = from_number<T>((b & 1 ? 1.0 : -1.0) * (rank == 0 ? 1.0 + static_cast<double>((b >> 1) % 3) : 1.0));
    }
  } else {
    const std::int64_t exact = exact_integers(values.dtype);
    const std::int64_t largest = rank < exact ? largest_exact(values.dtype, values.ranks) : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto low = static_cast<std::int64_t>(bits(i) >> 32);
      to[i] = from_number<T>(static_cast<double>(((low * (2 * largest + 1)) >> 32) - largest));
    }
  }
}

template <class T>
void write_integers(const Values& values, int rank, std::int64_t first, std::int64_t count, T* to) {
  const bool exact = values.value_kind == ValueKind::exact && reduces(values.kind);
  const bool adds = (reduces(values.kind) && values.op == ReduceOp::average) || (exact && values.op == ReduceOp::sum);
  const bool multiplies = exact && values.op == ReduceOp::product;
  const std::uint64_t largest = rank < 100 ? static_cast<std::uint64_t>(std::max(1, 100 / values.ranks)) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t bits =
        bits_of(values.seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(first + i));
    to[i] = static_cast<T>(adds ? bits % (largest + 1) : !multiplies ? bits : rank == 0 ? 1 + bits % 3 : 1);
  }
}

}  // namespace

std::int64_t largest_exact(DType dtype, int ranks) {
  return std::clamp<std::int64_t>(exact_integers(dtype) / ranks, 1, 1000);
}

void Values::write(int rank, std::int64_t first, std::int64_t count, std::byte* to) const {
  const auto floats = [&]<class T>(T*) { write_floats(*this, rank, first, count, reinterpret_cast<T*>(to)); };
  const auto integers = [&]<class T>(T*) { write_integers(*this, rank, first, count, reinterpret_cast<T*>(to)); };
  switch (dtype) {
    case DType::f64: return floats(static_cast<double*>(nullptr));
    case DType::f32: return floats(static_cast<float*>(nullptr));
    case DType::f16: return floats(static_cast<Float16*>(nullptr));
    case DType::bf16: return floats(static_cast<BFloat16*>(nullptr));
    case DType::i64: return integers(static_cast<std::int64_t*>(nullptr));
    case DType::i32: return integers(static_cast<std::int32_t*>(nullptr));
    case DType::i16: return integers(static_cast<std::int16_t*>(nullptr));
    case DType::i8: return integers(static_cast<std::int8_t*>(nullptr));
    case DType::u64: return integers(static_cast<std::uint64_t*>(nullptr));
    case DType::u32: return integers(static_cast<std::uint32_t*>(nullptr));
    case DType::u16: return integers(static_cast<std::uint16_t*>(nullptr));
    case DType::u8: return integers(static_cast<std::uint8_t*>(nullptr));
    case DType::boolean:
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<std::byte>(
            bits_of(seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(first + i)) & 1);
      }
      return;
  }
  throw std::logic_error("no such type");
}

}  // namespace kolo::bench
