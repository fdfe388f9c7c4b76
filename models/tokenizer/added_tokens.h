#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/definition.h"

namespace kolo::models {

/// Finds added tokens in a text: the leftmost one, the longest of these.
class AddedTokens {
 public:
  struct Found {
    std::size_t first = 0, behind = 0;  ///< bytes of the text
    std::int32_t id = 0;
  };

  void add(const AddedToken& token);

  /// The next one from `at` on that begins before `end`.
  std::optional<Found> find(std::string_view text, std::size_t at, std::size_t end) const;

  /// From where on a token may begin that the text does not have whole, if more follows; at a character's beginning.
  std::size_t undecided_from(std::string_view text) const;

 private:
  struct Group {                     // of tokens with one first byte
    std::string common;              // how all of them begin
    std::vector<AddedToken> tokens;  // the longest first
  };
  std::array<Group, 256> groups_;
  std::size_t longest_ = 0;
};

}  // namespace kolo::models
