#include "models/util/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "models/util/error.h"

namespace kolo::models {

std::size_t place_of_word(std::span<const std::string_view> words, std::string_view what, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  throw ModelError(fmt::format("unknown {} '{}' (known: {}); choose one of them", what, word, fmt::join(words, ", ")));
}

}  // namespace kolo::models
