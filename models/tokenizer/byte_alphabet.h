#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace kolo::models {

/// The character that stands for each byte in a tokenizer.json, as in GPT-2: printable characters of Latin-1 for
/// themselves, U+0100 … U+0143 for the others ("Ġ" is a space).
std::array<char32_t, 256> byte_characters();

/// The text of which each character stands for a byte of `bytes`.
std::string to_characters(std::string_view bytes);

/// The bytes that the characters stand for; nothing if one of them stands for none.
///
/// characters  valid UTF-8
std::optional<std::string> to_bytes(std::string_view characters);

}  // namespace kolo::models
