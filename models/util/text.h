#pragma once

#include <string>
#include <string_view>

namespace kolo::models {

/// Text from a file in single quotes, fit for a line of an error: control characters become '?', and it is cut at 80
/// bytes.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > longest ? "...'" : "'");
}

}  // namespace kolo::models
