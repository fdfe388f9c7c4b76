#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "models/tokenizer/utf8.h"

namespace kolo::testing {

/// Prose, code, numbers, white space, many scripts, emoji, any character at all, special tokens and broken UTF-8: the
/// same bytes for a seed everywhere.
class MixedText {
 public:
  explicit MixedText(std::uint64_t seed) : random_(seed) {}

  std::string text(std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += part();
    text.resize(bytes);
    return text;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  template <std::size_t count>
  std::string one_of(const std::array<std::string_view, count>& words) {
    return std::string(words[below(count)]);
  }

  std::string part() {
    switch (below(14)) {
      case 0:
      case 1:
      case 2:
      case 3: return prose();
      case 4:
      case 5:
      case 6: return code();
      case 7: return number();
      case 8: return spaces();
      case 9: return script();
      case 10: return emoji();
      case 11: return marks();
      case 12: return any_characters();
      default: return below(3) == 0 ? special() : broken();
    }
  }

  std::string word() {
    static constexpr std::array<std::string_view, 24> syllables{"th", "e",  "an", "in", "er", "ing", "o",  "f",
                                                                "re", "at", "st", "en", "ou", "w",   "ld", "ha",
                                                                "i",  "s",  "t",  "ly", "ed", "mo",  "qu", "ight"};
    std::string text;
    for (std::size_t i = 1 + below(4); i > 0; --i) text += syllables[below(syllables.size())];
    if (below(8) == 0) text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text;
  }
  std::string prose() {
    static constexpr std::array<std::string_view, 18> ends{
        "'s",  "'t",  "'re",       "'ve",           "'m", "'ll", "'d", "'S", "'LL", "'",
        "'Re", "'vE", "'\xc5\xbf", "\xe2\x80\x99s", ",",  ".",   "!",  "?\""};
    std::string text;
    for (std::size_t i = 1 + below(12); i > 0; --i) {
      text += word();
      if (below(5) == 0) text += one_of(ends);
      text += below(15) == 0 ? "\n" : " ";
    }
    return text;
  }
  std::string code() {
    static constexpr std::array<std::string_view, 14> lines{"if (x == 0) {\n    return foo->bar[3];\n}\n",
                                                            "#include <vector>\n\n",
                                                            "def f(self, *args):\n\treturn None\r\n",
                                                            "  std::vector<std::string> names;  // all\n",
                                                            "for (int i = 0; i < n; ++i) a[i] += b[i] * c;\n",
                                                            "\n\n\n",
                                                            "SELECT * FROM t WHERE id='x';--\n",
                                                            "<div class=\"a\">&amp;</div>",
                                                            "\\p{L}+|\\s+(?!\\S)",
                                                            "0x1F600 != 1e-3f;\n",
                                                            "let x: &'static str = \"\";\n",
                                                            "https://example.org/a?b=c&d=%20#e ",
                                                            "\t\t}\n\t}\n}\n",
                                                            "x = y if z else 'd'"};
    return one_of(lines);
  }
  std::string number() {
    std::string text;
    for (std::size_t i = 1 + below(12); i > 0; --i) text += static_cast<char>('0' + below(10));
    return text + (below(2) == 0 ? "," : " ");
  }
  std::string spaces() {
    static constexpr std::array<std::string_view, 14> kinds{" ",
                                                            " ",
                                                            " ",
                                                            "\n",
                                                            "\r\n",
                                                            "\t",
                                                            "\v",
                                                            "\xc2\xa0",
                                                            "\xc2\x85",
                                                            "\xe3\x80\x80",
                                                            "\xe2\x80\xa8",
                                                            "\xe1\xa0\x8e",
                                                            "\xe2\x80\x8b",
                                                            "\n"};
    std::string text;
    for (std::size_t i = 1 + below(6); i > 0; --i) text += one_of(kinds);
    return text;
  }
  /// Characters of one script.
  std::string script() {
    static constexpr std::array<std::array<char32_t, 2>, 12> blocks{{{0xc0, 0x17f},
                                                                     {0x391, 0x3c9},
                                                                     {0x410, 0x44f},
                                                                     {0x5d0, 0x5ea},
                                                                     {0x620, 0x669},
                                                                     {0x900, 0x96f},
                                                                     {0xe01, 0xe5b},
                                                                     {0x3041, 0x30ff},
                                                                     {0x4e00, 0x4fff},
                                                                     {0xac00, 0xaeff},
                                                                     {0x1d400, 0x1d7ff},
                                                                     {0x31350, 0x313ff}}};
    const auto& [first, last] = blocks[below(blocks.size())];
    std::string text = below(2) == 0 ? " " : "";
    for (std::size_t i = 1 + below(8); i > 0; --i)
      models::append_utf8(static_cast<char32_t>(first + below(last - first + 1)), text);
    return text;
  }
  std::string emoji() {
    static constexpr std::array<std::string_view, 8> some{"\xf0\x9f\x98\x80",
                                                          "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb",
                                                          "\xf0\x9f\x87\xb3\xf0\x9f\x87\xb1",
                                                          "\xe2\x9d\xa4\xef\xb8\x8f",
                                                          "\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd",
                                                          "1\xef\xb8\x8f\xe2\x83\xa3",
                                                          "\xf0\x9f\xab\xa0",
                                                          " \xf0\x9f\x8e\x89"};
    return one_of(some) + (below(2) == 0 ? one_of(some) : "");
  }
  std::string marks() {
    static constexpr std::string_view some = "!?.,:;-_+*/=()[]{}<>|&%$#@\"'`~^\\";
    std::string text = below(2) == 0 ? " " : "";
    for (std::size_t i = 1 + below(5); i > 0; --i) text += some[below(some.size())];
    return text + (below(3) == 0 ? "\n\n" : "");
  }
  std::string any_characters() {
    std::string text;
    for (std::size_t i = 1 + below(4); i > 0; --i) {
      auto character = static_cast<char32_t>(below(below(2) == 0 ? 0x3000 : 0x110000));
      if (character >= 0xd800 && character < 0xe000) character = 0xfffd;
      models::append_utf8(character, text);
    }
    return text;
  }
  std::string special() {
    static constexpr std::array<std::string_view, 8> some{
        "<|endoftext|>",   "<|endoftext|", "<|begin_of_text|>", "<|end",
        "<<|endoftext|>>", "<|tool|>",     "<|tool|>s",         "<|"};
    return one_of(some);
  }
  std::string broken() {
    static constexpr std::array<std::string_view, 10> some{
        "\xff",     "\x80\x80", "\xc3",         "\xe2\x82",         "\xf0\x9f\x98",
        "\xc0\xaf", "\xf5\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80"};
    std::string text = one_of(some);
    if (below(3) == 0) text += static_cast<char>(below(256));
    return text;
  }

  std::mt19937_64 random_;
};

}  // namespace kolo::testing
