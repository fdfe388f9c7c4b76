#pragma once

#include <cstddef>

#include <kolo/dtype.h>

namespace kolo {

/// Converts `count` elements, aligned or not, to another type: 16-bit floats to and from f32, integers to and from the
/// 64-bit ones of the same sign. What is wider holds every value; what is narrower gets the nearest value (of floats)
/// or the low bits (of integers).
void convert(DType from, const void* in, DType to, void* out, std::size_t count);

}  // namespace kolo
