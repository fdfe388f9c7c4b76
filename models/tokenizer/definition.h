#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/splitter.h"

namespace kolo::models {

/// A token that is looked for in the text before it is split.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = true;      ///< decoding leaves it out unless it is asked for
  bool normalized = false;  ///< looked for after those that are not
};

/// What a tokenizer.json says, as far as byte-level BPE goes.
struct TokenizerDefinition {
  std::vector<std::string> vocabulary;  ///< by id, bytes as characters ("Ġthe"); empty where an added token has the id
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  ///< tokens that are joined, most important first
  std::vector<AddedToken> added;
  SplitPattern split = SplitPattern::gpt2;
  bool add_prefix_space = false;             ///< a text begins with a space, if need be one of ours
  bool ignore_merges = false;                ///< a piece that is a token is that token, whatever the merges say
  std::vector<std::int32_t> before, behind;  ///< tokens around each text, as Llama 3's <|begin_of_text|>

  /// Ids are 0 … size-1.
  std::int64_t size() const { return static_cast<std::int64_t>(vocabulary.size()); }
};

/// Reads a tokenizer.json: byte-level BPE as in GPT-2 and Llama 3. Truncation and padding, which it may have, are no
/// part of it.
///
/// Errors: ModelError that names the file and the reason: unreadable, not JSON, another kind of model, of normalizer or
/// of splitting, options that change ids and are not known here, merges of tokens that are not there, two tokens of one
/// id, ids without a token, a byte without a token.
TokenizerDefinition read_tokenizer(const std::filesystem::path& path);

/// The text of a tokenizer.json that the `tokenizers` library loads.
std::string json_of(const TokenizerDefinition& definition);

}  // namespace kolo::models
