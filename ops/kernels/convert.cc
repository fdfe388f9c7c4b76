#include "ops/kernels/convert.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <kolo/float16.h>

namespace kolo {
namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, Float16>)
    return to_float16(value);
  else if constexpr (std::is_same_v<To, BFloat16>)
    return to_bfloat16(value);
  else if constexpr (std::is_integral_v<From>)
    return static_cast<To>(value);
  else
    return to_float(value);
}

template <class From, class To>
void run(const void* in, void* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, static_cast<const std::byte*>(in) + i * sizeof(From), sizeof(From));
    const To result = converted<To>(value);
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof(To), &result, sizeof(To));
  }
}

/// To or from the wider type, whichever the caller wants.
template <class Narrow, class Wide>
void run_either(bool widens, const void* in, void* out, std::size_t count) {
  widens ? run<Narrow, Wide>(in, out, count) : run<Wide, Narrow>(in, out, count);
}

}  // namespace

void convert(DType from, const void* in, DType to, void* out, std::size_t count) {
  const bool widens = size_of(from) < size_of(to);
  switch (widens ? from : to) {
    case DType::f16: return run_either<Float16, float>(widens, in, out, count);
    case DType::bf16: return run_either<BFloat16, float>(widens, in, out, count);
    case DType::i32: return run_either<std::int32_t, std::int64_t>(widens, in, out, count);
    case DType::i16: return run_either<std::int16_t, std::int64_t>(widens, in, out, count);
    case DType::i8: return run_either<std::int8_t, std::int64_t>(widens, in, out, count);
    case DType::u32: return run_either<std::uint32_t, std::uint64_t>(widens, in, out, count);
    case DType::u16: return run_either<std::uint16_t, std::uint64_t>(widens, in, out, count);
    case DType::u8: return run_either<std::uint8_t, std::uint64_t>(widens, in, out, count);
    case DType::f64:
    case DType::f32:
    case DType::i64:
    case DType::u64:
    case DType::boolean: return;  // no wider type holds these
  }
}

}  // namespace kolo
