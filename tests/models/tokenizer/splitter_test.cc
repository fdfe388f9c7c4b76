// How text is cut into pieces, and what becomes of bytes that are no text.

#include "models/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include <kolo/detail/hash.h>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/unicode_table.h"
#include "models/tokenizer/utf8.h"

namespace kolo::models {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(SplitPattern pattern, std::string_view text) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(pattern, text, at, false);
    if (end <= at || end > text.size()) {
      ADD_FAILURE() << "a piece from " << at << " to " << end;
      return pieces;
    }
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

/// Each alternative of the regular expression, and where two of them could match.
TEST(Splitter, AsGpt2) {
  const auto pieces = [](std::string_view text) { return pieces_of(SplitPattern::gpt2, text); };
  EXPECT_EQ(pieces("We'll don't 'S I'm"), (Pieces{"We", "'ll", " don", "'t", " '", "S", " I", "'m"}));
  EXPECT_EQ(pieces("it'd 've're'"), (Pieces{"it", "'d", " '", "ve", "'re", "'"}));
  EXPECT_EQ(pieces("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(pieces("a   "), (Pieces{"a", "   "}));
  EXPECT_EQ(pieces("a\n\n b"), (Pieces{"a", "\n\n", " b"}));
  EXPECT_EQ(pieces("a\n b\tc"), (Pieces{"a", "\n", " b", "\t", "c"}));
  EXPECT_EQ(pieces("x1234 5!? ?"), (Pieces{"x", "1234", " 5", "!?", " ?"}));
  EXPECT_EQ(pieces(" \xc3\xa9\xe4\xb8\xad\xd9\xa3 \xf0\x9f\x98\x80"),
            (Pieces{" \xc3\xa9\xe4\xb8\xad", "\xd9\xa3", " \xf0\x9f\x98\x80"}));
  EXPECT_EQ(pieces("a\xc2\xa0\xc2\xa0z"), (Pieces{"a", "\xc2\xa0", "\xc2\xa0", "z"}));
}

TEST(Splitter, AsLlama3) {
  const auto pieces = [](std::string_view text) { return pieces_of(SplitPattern::llama3, text); };
  EXPECT_EQ(pieces("We'LL don't I'\xc5\xbfo"), (Pieces{"We", "'LL", " don", "'t", " I", "'\xc5\xbf", "o"}));
  EXPECT_EQ(pieces("'x $y \xe2\x82\xac\xd0\xa5z"), (Pieces{"'x", " $", "y", " \xe2\x82\xac", "\xd0\xa5z"}));
  EXPECT_EQ(pieces("\xef\xbf\xbd\xd0\xa5  "), (Pieces{"\xef\xbf\xbd\xd0\xa5", "  "}));
  EXPECT_EQ(pieces("12345 678"), (Pieces{"123", "45", " ", "678"}));
  EXPECT_EQ(pieces("f();\n\n  }"), (Pieces{"f", "();\n\n", " ", " }"}));
  EXPECT_EQ(pieces("a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(pieces("a\tb\r\nc"), (Pieces{"a", "\tb", "\r\n", "c"}));
  EXPECT_EQ(pieces("a   "), (Pieces{"a", "   "}));
}

/// An open text decides nothing that what follows could change.
TEST(Splitter, OpenTextWaits) {
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3}) {
    for (const std::string_view text : {"abc", " ", "'", "'r", "12", "!?", "\n ", " a"})
      EXPECT_EQ(piece_end(pattern, text, 0, true), 0u) << text;
    EXPECT_EQ(piece_end(pattern, "abc ", 0, true), 3u);
    EXPECT_EQ(piece_end(pattern, "'s", 0, true), 2u);
    EXPECT_EQ(piece_end(pattern, "!a", 0, true), pattern == SplitPattern::gpt2 ? 1u : 0u);
  }
  EXPECT_EQ(piece_end(SplitPattern::gpt2, "\n  a", 0, true), 2u);
  EXPECT_EQ(piece_end(SplitPattern::llama3, "\n  ", 0, true), 0u) << "another line break may follow";
}

/// Numbers of the library `tokenizers` 0.23.3: characters of each kind, and a hash of all kinds.
TEST(Splitter, KindsOfAllCharacters) {
  std::array<int, 4> counts{};
  detail::Hash hash;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    ++counts[static_cast<std::size_t>(kind_of(c))];
    hash.add(static_cast<std::uint64_t>(kind_of(c)));
  }
  EXPECT_EQ(counts[0], 141028);
  EXPECT_EQ(counts[1], 1911);
  EXPECT_EQ(counts[2], 25);
  EXPECT_EQ(hash.value(), 0x39cb53b5ed979e6au);
}

TEST(Utf8, EveryCharacterAndItsBytes) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Char back = utf8_at(text, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.bytes, text.size());
    ASSERT_EQ(valid_utf8(text), text) << static_cast<std::uint32_t>(c);
  }
}

/// The Unicode Standard 16.0, section 3.9, tables 3-8 to 3-11.
TEST(Utf8, MaximalPartsAreReplaced) {
  const std::string bad = "\xef\xbf\xbd";
  const auto times = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += bad;
    return text;
  };
  EXPECT_EQ(valid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), times(8) + "A");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), times(8) + "A");
  EXPECT_EQ(valid_utf8("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), times(5) + "A" + times(2) + "B");
  EXPECT_EQ(valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), times(4) + "A");
  EXPECT_EQ(valid_utf8("a\xe2\x82"), "a" + bad);
}

TEST(Utf8, PartsOfACharacterAreKept) {
  std::string text;
  EXPECT_EQ(append_valid_utf8("a\xf0\x9f\x98", false, text), 1u);
  EXPECT_EQ(append_valid_utf8("\xf0\x9f\x98\x80\xe2", false, text), 4u);
  EXPECT_EQ(append_valid_utf8("\xe2\x28", false, text), 2u);
  EXPECT_EQ(text, "a\xf0\x9f\x98\x80\xef\xbf\xbd(");
}

TEST(ByteAlphabet, AsInGpt2) {
  EXPECT_EQ(to_characters(std::string_view(" a\n\0\x7f\xad\xff", 7)), "ĠaĊĀġŃÿ");
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(to_bytes(to_characters(bytes)), bytes);
  for (const char* none : {" ", "\xc2\xad", "\xc5\x84", "中", "a\n"}) EXPECT_FALSE(to_bytes(none)) << none;
}

}  // namespace
}  // namespace kolo::models
