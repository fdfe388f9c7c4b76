#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <kolo/detail/hash.h>

namespace kolo::models {

/// Two neighbouring tokens.
using TokenPair = std::pair<std::int32_t, std::int32_t>;

struct TokenPairHash {
  std::size_t operator()(const TokenPair& pair) const {
    return detail::mixed(static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                         static_cast<std::uint32_t>(pair.second));
  }
};

/// Joins the tokens of a piece (byte-pair encoding; Sennrich, Haddow & Birch 2016, arXiv:1508.07909).
class Merger {
 public:
  struct Merge {
    std::int32_t rank = 0;  ///< lower ones come first
    std::int32_t joined = 0;
  };

  /// Later merges of the same pair replace earlier ones.
  void add(const TokenPair& pair, const Merge& merge) { merges_[pair] = merge; }

  /// Joins, as long as there is one, the pair of the lowest rank, the leftmost of these. n log n steps.
  void join(std::vector<std::int32_t>& tokens) const;

 private:
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<TokenPair, Merge, TokenPairHash> merges_;
};

}  // namespace kolo::models
