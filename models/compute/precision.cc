#include "models/compute/precision.h"

#include <array>

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

}  // namespace kolo::models
