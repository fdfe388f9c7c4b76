#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace kolo::models {

/// A character and the bytes that encode it.
struct Utf8Char {
  char32_t value = 0;
  unsigned bytes = 0;
};

/// The character that begins at `text[at]`; the text is valid UTF-8.
Utf8Char utf8_at(std::string_view text, std::size_t at);

/// Appends a character's UTF-8.
void append_utf8(char32_t character, std::string& to);

/// Appends the bytes as valid UTF-8: each maximal part of an invalid sequence becomes U+FFFD, as in Python's
/// `decode(errors="replace")` (The Unicode Standard, table 3-8).
///
/// last  the text ends here; else up to three bytes that may begin a character are left
/// Returns the bytes used.
std::size_t append_valid_utf8(std::string_view bytes, bool last, std::string& to);

/// The bytes as valid UTF-8.
std::string valid_utf8(std::string_view bytes);

/// Text that comes in parts, made valid UTF-8. What a part does not decide is kept for the next one.
class TextParts {
 public:
  /// Uses text from its beginning and returns the bytes used, which end at the end of a character.
  ///
  /// open  more text may follow: it is left what depends on it
  using Use = std::function<std::size_t(std::string_view text, bool open)>;

  /// last  the text ends with this part; the next part begins another one
  void add(std::string_view bytes, bool last, const Use& use);

 private:
  std::string bytes_, text_;
  std::size_t enough_ = 0;  // characters of text_ for the next use
};

}  // namespace kolo::models
