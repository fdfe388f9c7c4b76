#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/definition.h"
#include "models/tokenizer/merger.h"
#include "models/tokenizer/utf8.h"

namespace kolo::models {

/// Byte-level BPE, as of GPT-2 and Llama 3. Ids equal those of the library `tokenizers` for the text in which each
/// invalid part of UTF-8 is replaced by U+FFFD. Immutable, so thread-safe.
class Tokenizer {
 public:
  /// Errors: as read_tokenizer().
  explicit Tokenizer(const std::filesystem::path& file) : Tokenizer(read_tokenizer(file)) {}
  /// definition  as read_tokenizer() and TokenizerTrainer give it
  explicit Tokenizer(TokenizerDefinition definition);

  const TokenizerDefinition& definition() const { return definition_; }
  /// Ids are 0 … size-1.
  std::int64_t size() const { return definition_.size(); }

  /// The ids of a text, with those that belong around each. Added tokens in the text are recognised.
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// The text of some ids; what is no UTF-8 becomes U+FFFD. Errors: ModelError for an id that is not in 0 … size-1.
  ///
  /// special  write special tokens, too
  std::string decode(std::span<const std::int32_t> ids, bool special = false) const;

  /// Bytes of text that each id stands for, by id; 0 for special tokens.
  std::vector<std::int32_t> byte_counts() const;

  /// A hash of all that ids depend on.
  std::uint64_t fingerprint() const;

 private:
  friend class TextEncoder;

  TokenizerDefinition definition_;
  std::vector<std::string> bytes_;  // by id
  std::vector<bool> is_special_;    // by id
  std::array<std::int32_t, 256> ids_of_bytes_{};
  std::array<AddedTokens, 2> added_;  // those that are looked for first, and those in what is between them
  Merger merger_;
  std::unordered_map<std::string, std::int32_t, detail::StringHash, std::equal_to<>>
      whole_;  // with ignore_merges: tokens by their bytes
};

/// Encodes texts that come in parts, such as long files, and remembers the pieces that it has seen. Ids do not depend
/// on how a text is cut. For one thread; the tokenizer must outlive it.
class TextEncoder {
 public:
  explicit TextEncoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Appends ids to `to`: those that the text so far decides, and, with the last part, all.
  ///
  /// last  the text ends with this part; the next part begins another one
  void add(std::string_view part, bool last, std::vector<std::int32_t>& to);

 private:
  using Ids = std::vector<std::int32_t>;

  std::size_t between_added(std::size_t level, std::string_view text, bool open, Ids& to);
  std::size_t pieces(std::string_view text, bool open, Ids& to);
  void piece(std::string_view text, Ids& to);

  const Tokenizer* tokenizer_;
  TextParts parts_;
  bool begun_ = false;          // of the text
  bool stretch_begun_ = false;  // of what is between added tokens
  std::unordered_map<std::string, Ids, detail::StringHash, std::equal_to<>> seen_;
};

}  // namespace kolo::models
