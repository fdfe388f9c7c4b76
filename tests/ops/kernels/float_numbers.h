#pragma once

#include <type_traits>

#include <kolo/float16.h>

namespace kolo {

// Elements of every floating-point type, as numbers and back.

template <class T>
long double to_long(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return to_float(value);
}

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
