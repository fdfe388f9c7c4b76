#pragma once

#include <cstdint>
#include <string_view>

namespace kolo::models {

/// What the inputs of matrix products are rounded to. Weights and gradients are f32 in any case, and so are sums,
/// norms, softmax and the residual stream.
enum class Precision : std::uint8_t { f32, bf16, f16 };

/// "f32", "bf16" or "f16". Errors: ModelError for any other word.
Precision precision_of(std::string_view word);

/// The word that precision_of() takes.
std::string_view to_string(Precision precision);

}  // namespace kolo::models
