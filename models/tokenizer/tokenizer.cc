#include "models/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/splitter.h"

namespace kolo::models {

Tokenizer::Tokenizer(TokenizerDefinition definition)
    : definition_(std::move(definition)),
      bytes_(definition_.vocabulary),
      is_special_(definition_.vocabulary.size(), false) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(bytes_.size()); ++id)
    ids.emplace(definition_.vocabulary[static_cast<std::size_t>(id)], id);
  std::int32_t rank = 0;
  for (const TokenPair& pair : definition_.merges) {
    const auto text_of = [&](std::int32_t id) { return definition_.vocabulary.at(static_cast<std::size_t>(id)); };
    merger_.add(pair, {rank++, ids.at(text_of(pair.first) + text_of(pair.second))});
  }
  for (const AddedToken& token : definition_.added) {
    bytes_[static_cast<std::size_t>(token.id)] = token.content;
    is_special_[static_cast<std::size_t>(token.id)] = token.special;
    added_[token.normalized ? 1 : 0].add(token);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    ids_of_bytes_[byte] = ids.at(to_characters({&text, 1}));
  }
  for (std::string& text : bytes_) {
    if (auto bytes = to_bytes(text)) text = std::move(*bytes);  // others are what they say
  }
  if (!definition_.ignore_merges) return;
  for (const auto& [text, id] : ids) {
    if (auto bytes = to_bytes(text)) whole_.emplace(std::move(*bytes), id);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  TextEncoder(*this).add(text, true, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= size())
      throw ModelError(fmt::format("token {} is none of the tokenizer's (0 to {}); choose others", id, size() - 1));
    if (special || !is_special_[static_cast<std::size_t>(id)]) bytes += bytes_[static_cast<std::size_t>(id)];
  }
  return valid_utf8(bytes);
}

std::vector<std::int32_t> Tokenizer::byte_counts() const {
  std::vector<std::int32_t> counts;
  for (std::size_t id = 0; id < bytes_.size(); ++id)
    counts.push_back(is_special_[id] ? 0 : static_cast<std::int32_t>(bytes_[id].size()));
  return counts;
}

std::uint64_t Tokenizer::fingerprint() const {
  detail::Hash hash;
  const auto add = [&](std::string_view text) { hash.add(text.size()).add(text); };
  const auto add_ids = [&](std::span<const std::int32_t> ids) { hash.add(ids.size()).add(std::as_bytes(ids)); };
  hash.add(definition_.vocabulary.size());
  for (const std::string& token : definition_.vocabulary) add(token);
  hash.add(definition_.merges.size());
  for (const auto& [left, right] : definition_.merges) add_ids(std::array{left, right});
  for (const AddedToken& token : definition_.added) {
    add(token.content);
    add_ids(std::array{token.id, token.normalized ? 1 : 0});
  }
  add(to_string(definition_.split));
  add_ids(std::array{definition_.add_prefix_space ? 1 : 0, definition_.ignore_merges ? 1 : 0});
  add_ids(definition_.before);
  add_ids(definition_.behind);
  return hash.value();
}

void TextEncoder::add(std::string_view part, bool last, std::vector<std::int32_t>& to) {
  const TokenizerDefinition& definition = tokenizer_->definition_;
  if (!begun_) to.insert(to.end(), definition.before.begin(), definition.before.end());
  begun_ = !last;
  parts_.add(part, last, [&](std::string_view text, bool open) { return between_added(0, text, open, to); });
  if (last) to.insert(to.end(), definition.behind.begin(), definition.behind.end());
}

/// Encodes the text between the added tokens of `level`, and these. Returns the bytes that are done.
std::size_t TextEncoder::between_added(std::size_t level, std::string_view text, bool open, Ids& to) {
  if (level == tokenizer_->added_.size()) return pieces(text, open, to);
  const AddedTokens& added = tokenizer_->added_[level];
  const std::size_t end = open ? added.undecided_from(text) : text.size();
  std::size_t at = 0;
  while (const auto found = added.find(text, at, end)) {
    (void)between_added(level + 1, text.substr(at, found->first - at), false, to);
    to.push_back(found->id);
    at = found->behind;
  }
  return at < end || !open ? at + between_added(level + 1, text.substr(at, std::max(at, end) - at), open, to) : at;
}

std::size_t TextEncoder::pieces(std::string_view text, bool open, Ids& to) {
  std::string with_space;
  const bool adds_space =
      tokenizer_->definition_.add_prefix_space && !stretch_begun_ && !text.empty() && text[0] != ' ';
  if (adds_space) text = with_space.append(" ").append(text);
  std::size_t done = 0;
  while (done < text.size()) {
    const std::size_t end = piece_end(tokenizer_->definition_.split, text, done, open);
    if (end == 0) break;
    piece(text.substr(done, end - done), to);
    done = end;
  }
  stretch_begun_ = open && (stretch_begun_ || done > 0);
  return done > 0 && adds_space ? done - 1 : done;
}

void TextEncoder::piece(std::string_view text, Ids& to) {
  constexpr std::size_t most_pieces = 1 << 17, longest = 64;  // some tens of megabytes
  if (const auto seen = seen_.find(text); seen != seen_.end()) {
    to.insert(to.end(), seen->second.begin(), seen->second.end());
    return;
  }
  Ids ids;
  if (const auto whole = tokenizer_->whole_.find(text); whole != tokenizer_->whole_.end()) {
    ids.push_back(whole->second);
  } else {
    for (const char byte : text) ids.push_back(tokenizer_->ids_of_bytes_[static_cast<unsigned char>(byte)]);
    tokenizer_->merger_.join(ids);
  }
  to.insert(to.end(), ids.begin(), ids.end());
  if (text.size() > longest) return;
  if (seen_.size() == most_pieces) seen_.clear();
  seen_.emplace(text, std::move(ids));
}

}  // namespace kolo::models
