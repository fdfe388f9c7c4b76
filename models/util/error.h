#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kolo::models {

/// A file, data set or setting that cannot be used. `what()` is one line: *problem (why); what to try*.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Text from a file in single quotes, fit for a line of an error: control characters become '?', and it is cut at 80
/// bytes.
std::string in_quotes(std::string_view text);

/// The index of `word` in `words`. Errors: ModelError that says `what` is unknown, and lists the known words.
std::size_t index_of(std::string_view word, std::span<const std::string_view> words, std::string_view what);

/// The words for the enumerators of an Enum, in their order.
template <class Enum, std::size_t count>
struct WordTable {
  std::string_view what;  ///< for errors: "precision"
  std::array<std::string_view, count> words;

  /// Errors: ModelError for any other word.
  Enum parse(std::string_view word) const { return static_cast<Enum>(index_of(word, words, what)); }
  constexpr std::string_view operator[](Enum value) const { return words[static_cast<std::size_t>(value)]; }
};

}  // namespace kolo::models
