#include "models/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace kolo::models {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

/// How many bytes of the sequence at `text[at]` are as the table of well-formed sequences has them, and how many a
/// whole one has; 0 of 1 for a byte that begins none.
struct Sequence {
  std::size_t good, whole;
};
Sequence sequence_at(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  if (lead < 0x80) return {1, 1};
  if (lead < 0xc2 || lead > 0xf4) return {0, 1};
  const std::size_t whole = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // Neither longer forms of what is shorter, nor surrogates, nor what is above U+10FFFF.
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  std::size_t good = 1;
  for (; good < whole && at + good < text.size(); ++good) {
    const unsigned next = byte_at(text, at + good);
    if (next < (good == 1 ? least : 0x80) || next > (good == 1 ? most : 0xbf)) break;
  }
  return {good, whole};
}

}  // namespace

Utf8Char utf8_at(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](std::size_t i) { return static_cast<char32_t>(byte_at(text, at + i) & 0x3f); };
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | tail(1), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

void append_utf8(char32_t character, std::string& to) {
  const auto put = [&](char32_t bits) { to += static_cast<char>(bits); };
  if (character < 0x80) return put(character);
  if (character >= 0x10000) {
    put(0xf0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3f));
  } else if (character >= 0x800) {
    put(0xe0 | character >> 12);
  }
  put(character >= 0x800 ? 0x80 | (character >> 6 & 0x3f) : 0xc0 | character >> 6);
  put(0x80 | (character & 0x3f));
}

std::size_t append_valid_utf8(std::string_view bytes, bool last, std::string& to) {
  std::size_t from = 0, at = 0;  // bytes from `from` to `at` are valid
  const auto copy = [&] { to.append(bytes, from, at - from); };
  while (at < bytes.size()) {
    std::uint64_t eight = 0;
    if (at + sizeof eight <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const auto [good, whole] = sequence_at(bytes, at);
    if (good == whole) {
      at += whole;
      continue;
    }
    if (!last && good > 0 && at + good == bytes.size()) break;
    copy();
    to += "\xef\xbf\xbd";
    at += good == 0 ? 1 : good;
    from = at;
  }
  copy();
  return at;
}

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  (void)append_valid_utf8(bytes, true, text);
  return text;
}

void TextParts::add(std::string_view bytes, bool last, const Use& use) {
  bytes_.append(bytes);
  bytes_.erase(0, append_valid_utf8(bytes_, last, text_));
  if (!last && text_.size() < enough_) return;
  text_.erase(0, use(text_, !last));
  enough_ = last ? 0 : 2 * text_.size();  // a part that decides nothing is not looked at again and again
}

}  // namespace kolo::models
