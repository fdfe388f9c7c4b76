#pragma once

namespace kolo::models {

/// What the patterns of byte-level tokenizers ask of a character.
enum class CharKind : unsigned char {
  letter,  ///< \p{L}
  number,  ///< \p{N}
  space,   ///< \s
  other
};

/// By Unicode 16.0, the version of the `tokenizers` library 0.23: ids depend on it.
CharKind kind_of(char32_t character);

}  // namespace kolo::models
