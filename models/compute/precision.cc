#include "models/compute/precision.h"

#include <kolo/float16.h>

namespace kolo::models {
void to_half(Precision precision, std::span<const float> values, float factor, std::span<std::uint16_t> out) {
  const float* const __restrict in = values.data();
  std::uint16_t* const __restrict to = out.data();
  const std::size_t count = values.size();
  if (precision == Precision::bf16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_bfloat16(factor * in[i]).bits;
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float16(factor * in[i]).bits;
  }
}

void from_half(Precision precision, std::span<const std::uint16_t> values, std::span<float> out) {
  const std::uint16_t* const __restrict in = values.data();
  float* const __restrict to = out.data();
  const std::size_t count = values.size();
  if (precision == Precision::bf16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float(BFloat16{in[i]});
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float(Float16{in[i]});
  }
}

}  // namespace kolo::models
