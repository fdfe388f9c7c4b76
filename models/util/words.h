#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kolo::models {

/// The place of `word` among the words that stand for a choice. Errors: ModelError that says `what` is unknown, and
/// lists the known ones.
std::size_t place_of_word(std::span<const std::string_view> words, std::string_view what, std::string_view word);

}  // namespace kolo::models
