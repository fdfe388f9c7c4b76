#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/util/error.h"
#include "models/util/input_file.h"

namespace kolo::models {

/// The dtype of a token file: bytes, or little-endian numbers of 16, 32 or 64 bits.
enum class TokenType : unsigned char { bytes, u16, u32, u64 };

inline constexpr WordTable<TokenType, 4> token_types{"tokens", {"bytes", "u16", "u32", "u64"}};
constexpr std::string_view to_string(TokenType type) {
  return token_types[type];
}

/// Bytes of a token.
constexpr std::int64_t width_of(TokenType type) {
  return std::int64_t{1} << static_cast<unsigned>(type);
}

/// Where a file has its tokens.
struct TokenLayout {
  TokenType type = TokenType::bytes;
  std::uint64_t first_byte = 0;
  std::int64_t count = 0;
};

/// Tells by its content what a file is: llm.c's .bin (magic 20240520 of u16, 20240801 of u32), NumPy's .npy of one
/// dimension (u2, u4, i4, u8, i8), or what `type` says; without that, text.
///
/// Errors: ModelError: a header of another version, dtype or shape than these, or of another type than `type`; fewer or
/// more bytes than the header's tokens have; half a token at the end; no header, no `type`, and zero bytes, which text
/// has not.
TokenLayout token_layout(const InputFile& file, std::optional<TokenType> type);

/// Errors: ModelError: a file that token_layout() does not take for text if no type is said.
void check_text(const InputFile& file);

}  // namespace kolo::models
