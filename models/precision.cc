#include "models/precision.h"

#include <fmt/format.h>

#include <array>

#include "models/error.h"

namespace kolo::models {

Precision precision_of(std::string_view word) {
  for (const Precision precision : std::array{Precision::f32, Precision::bf16, Precision::f16}) {
    if (word == to_string(precision)) return precision;
  }
  throw ModelError(fmt::format("unknown precision '{}' (known: f32, bf16, f16); choose one of them", word));
}

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::f32: return "f32";
    case Precision::bf16: return "bf16";
    case Precision::f16: return "f16";
  }
  return "unknown precision";
}

}  // namespace kolo::models
