#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include <kolo/dtype.h>
#include <kolo/float16.h>
#include <kolo/op.h>

namespace kolo {

inline constexpr std::array all_types{DType::f64, DType::f32, DType::f16,    DType::bf16, DType::i64,
                                      DType::i32, DType::i16, DType::i8,     DType::u64,  DType::u32,
                                      DType::u16, DType::u8,  DType::boolean};

/// The types that arithmetic works on, and its ops: any op with any type.
inline constexpr std::array reducible_types{DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32,
                                            DType::i16, DType::i8,  DType::u64, DType::u32,  DType::u16, DType::u8};

inline constexpr std::array reduce_ops{ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                       ReduceOp::product};

inline constexpr std::array all_reduce_ops{ReduceOp::sum,        ReduceOp::average, ReduceOp::min,
                                           ReduceOp::max,        ReduceOp::product, ReduceOp::bit_and,
                                           ReduceOp::bit_or,     ReduceOp::bit_xor, ReduceOp::logical_and,
                                           ReduceOp::logical_or, ReduceOp::adasum};
static_assert(all_types.size() == dtype_count && all_reduce_ops.size() == reduce_op_count);

/// Calls body.template operator()<T>() with the C++ type of `dtype`.
template <class Body>
auto with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f64: return body.template operator()<double>();
    case DType::f32: return body.template operator()<float>();
    case DType::f16: return body.template operator()<Float16>();
    case DType::bf16: return body.template operator()<BFloat16>();
    case DType::i64: return body.template operator()<std::int64_t>();
    case DType::i32: return body.template operator()<std::int32_t>();
    case DType::i16: return body.template operator()<std::int16_t>();
    case DType::i8: return body.template operator()<std::int8_t>();
    case DType::u64: return body.template operator()<std::uint64_t>();
    case DType::u32: return body.template operator()<std::uint32_t>();
    case DType::u16: return body.template operator()<std::uint16_t>();
    case DType::u8: return body.template operator()<std::uint8_t>();
    case DType::boolean: return body.template operator()<bool>();
  }
  throw std::logic_error("no such type");
}

/// An element of a floating-point type as a number.
template <class T>
long double to_long(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return to_float(value);
}

/// A number as an element of any type.
template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

}  // namespace kolo
