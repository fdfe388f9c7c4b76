#include "models/util/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kolo::models {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > longest ? "...'" : "'");
}

std::size_t index_of(std::string_view word, std::span<const std::string_view> words, std::string_view what) {
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  throw ModelError(fmt::format("unknown {} '{}' (known: {}); choose one of them", what, word, fmt::join(words, ", ")));
}

}  // namespace kolo::models
