#include "models/tokenizer/added_tokens.h"

#include <algorithm>

namespace kolo::models {

void AddedTokens::add(const AddedToken& token) {
  Group& group = groups_[static_cast<unsigned char>(token.content.front())];
  if (group.tokens.empty()) group.common = token.content;
  const auto apart = std::ranges::mismatch(group.common, token.content).in1;
  group.common.erase(apart, group.common.end());
  const auto shorter = std::ranges::find_if(
      group.tokens, [&](const AddedToken& other) { return other.content.size() < token.content.size(); });
  group.tokens.insert(shorter, token);
  longest_ = std::max(longest_, token.content.size());
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, std::size_t at, std::size_t end) const {
  if (longest_ == 0) return std::nullopt;
  for (; at < end; ++at) {
    const Group& group = groups_[static_cast<unsigned char>(text[at])];
    if (group.tokens.empty()) continue;
    const std::string_view rest = text.substr(at);
    if (!rest.starts_with(group.common)) continue;
    for (const AddedToken& token : group.tokens) {
      if (rest.starts_with(token.content)) return Found{at, at + token.content.size(), token.id};
    }
  }
  return std::nullopt;
}

std::size_t AddedTokens::undecided_from(std::string_view text) const {
  if (longest_ == 0) return text.size();
  std::size_t from = text.size() - std::min(text.size(), longest_ - 1);
  while (from > 0 && from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) --from;
  return from;
}

}  // namespace kolo::models
