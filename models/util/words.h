#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kolo::models {

/// The place of `word` among the words that stand for a choice. Errors: ModelError that says `what` is unknown, and
/// lists the known ones.
std::size_t place_of_word(std::span<const std::string_view> words, std::string_view what, std::string_view word);

/// Text from a file in single quotes, fit for a line of an error: control characters become '?', and it is cut at 80
/// bytes.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > longest ? "...'" : "'");
}

}  // namespace kolo::models
