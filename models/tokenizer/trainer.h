#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/tokenizer/definition.h"
#include "models/tokenizer/utf8.h"

namespace kolo::models {

struct TrainerSettings {
  std::int64_t vocabulary = 50000;  ///< tokens to stop at: special ones, the 256 bytes, and those that are learned
  std::int64_t min_frequency = 2;   ///< pairs that occur less often are not joined
  std::vector<std::string> special{"<|endoftext|>"};  ///< get the first ids
  SplitPattern split = SplitPattern::gpt2;
};

/// Learns a tokenizer from texts: joins the most frequent pair of neighbouring tokens, again and again. Vocabulary and
/// merges equal those of the library `tokenizers` (BpeTrainer, with the initial alphabet of ByteLevel, on an iterator
/// of whole texts; its `train` on files cuts them into lines first).
class TokenizerTrainer {
 public:
  explicit TokenizerTrainer(TrainerSettings settings) : settings_(std::move(settings)) {}

  /// Counts the pieces of a text that may come in parts. Special tokens in it are text like any other.
  ///
  /// last  the text ends with this part; the next part begins another one
  void add(std::string_view part, bool last);

  /// Learns from what was counted. Errors: ModelError if the vocabulary has no room for bytes and special tokens, or a
  /// special token is empty, no UTF-8, or there twice.
  TokenizerDefinition train() const;

 private:
  TrainerSettings settings_;
  TextParts parts_;
  std::unordered_map<std::string, std::int64_t, detail::StringHash, std::equal_to<>> counts_;  // of pieces
};

}  // namespace kolo::models
