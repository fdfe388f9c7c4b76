#include "models/compute/precision.h"

#include <array>

#include <kolo/float16.h>

#include "models/util/words.h"

namespace kolo::models {
namespace {

constexpr std::array<std::string_view, 3> precision_words{"f32", "bf16", "f16"};

}  // namespace

Precision precision_of(std::string_view word) {
  return static_cast<Precision>(place_of_word(precision_words, "precision", word));
}

std::string_view to_string(Precision precision) {
  return precision_words[static_cast<std::size_t>(precision)];
}

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
