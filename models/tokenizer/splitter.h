#pragma once

#include <cstddef>
#include <string_view>

#include "models/util/error.h"

namespace kolo::models {

/// How text is cut into pieces before merges: as GPT-2 does it, or Llama 3 (and GPT-4).
enum class SplitPattern : unsigned char { gpt2, llama3 };

inline constexpr WordTable<SplitPattern, 2> split_patterns{"split", {"gpt2", "llama3"}};
constexpr std::string_view to_string(SplitPattern pattern) {
  return split_patterns[pattern];
}

/// The regular expression that a tokenizer.json has for it.
std::string_view regex_of(SplitPattern pattern);

/// The end of the piece of `text`, valid UTF-8, that begins at `at`, before its end: what the regular expression
/// matches there. Every place begins a match, so pieces follow each other.
///
/// Written out instead of handed to a library of regular expressions: these know other versions of Unicode, and then
/// ids differ (PCRE2 10.42 in 9392 characters). The first alternative that matches wins, as there.
///
/// open  more text may follow; returns 0 if the piece depends on it
std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t at, bool open);

}  // namespace kolo::models
