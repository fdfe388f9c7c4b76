#include "models/tokenizer/splitter.h"

#include <array>
#include <cstdint>

#include "models/tokenizer/unicode_table.h"
#include "models/tokenizer/utf8.h"

namespace kolo::models {
namespace {

constexpr std::array<std::string_view, 2> regexes{
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr char32_t long_s = 0x17f;  // the one other character that is an s, t, r, e, v, m, l or d regardless of case

CharKind ascii_kind(unsigned char c) {
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CharKind::letter;
  if (c >= '0' && c <= '9') return CharKind::number;
  return c == ' ' || (c >= 9 && c <= 13) ? CharKind::space : CharKind::other;
}

/// Matches at places of a text, and notices when the answer lies behind its end.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}

  bool saw_the_end() const { return saw_the_end_; }

  bool at_end(std::size_t at) {
    if (at < text_.size()) return false;
    saw_the_end_ = true;
    return true;
  }

  /// Whether the character there is of that kind; `bytes_` are its bytes.
  bool is(CharKind kind, std::size_t at) {
    if (at_end(at)) return false;
    if (const auto c = static_cast<unsigned char>(text_[at]); c < 0x80) {
      bytes_ = 1;
      return ascii_kind(c) == kind;
    }
    const Utf8Char next = utf8_at(text_, at);
    bytes_ = next.bytes;
    return kind_of(next.value) == kind;
  }
  bool is_char(char c, std::size_t at) { return !at_end(at) && text_[at] == c; }
  bool is_line_end(std::size_t at) { return is_char('\r', at) || is_char('\n', at); }

  /// The end of the run of a kind, of at most `most` characters.
  std::size_t run(CharKind kind, std::size_t at, std::size_t most = SIZE_MAX) {
    for (; most > 0 && is(kind, at); --most) at += bytes_;
    return at;
  }

  /// 's 't 're 've 'm 'll 'd; 0 for none
  std::size_t contraction(std::size_t at, bool any_case) {
    if (!is_char('\'', at) || at_end(at + 1)) return 0;
    const char first = letter(at + 1, any_case);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (any_case && utf8_at(text_, at + 1).value == long_s) return at + 3;
    const bool takes_two = first == 'r' || first == 'v' || first == 'l';
    if (!takes_two || at_end(at + 2)) return 0;
    return letter(at + 2, any_case) == (first == 'l' ? 'l' : 'e') ? at + 3 : 0;
  }

  /// `\s+(?!\S)|\s+`: the last of several spaces belongs to what follows.
  std::size_t spaces(std::size_t at) {
    std::size_t before_last = at, end = at;
    for (; is(CharKind::space, end); end += bytes_) before_last = end;
    return end < text_.size() && before_last > at ? before_last : end;
  }

  std::size_t gpt2(std::size_t at) {
    if (const std::size_t end = contraction(at, false)) return end;
    const std::size_t start = at + (is_char(' ', at) ? 1 : 0);
    for (const CharKind kind : {CharKind::letter, CharKind::number, CharKind::other}) {
      if (is(kind, start)) return run(kind, start);
    }
    return spaces(at);
  }

  std::size_t llama3(std::size_t at) {
    if (const std::size_t end = contraction(at, true)) return end;
    if (is(CharKind::letter, at)) return run(CharKind::letter, at);
    if (is(CharKind::number, at)) return run(CharKind::number, at, 3);
    const std::size_t next = at + bytes_;
    if (!is_line_end(at) && is(CharKind::letter, next)) return run(CharKind::letter, next);
    const std::size_t start = at + (is_char(' ', at) ? 1 : 0);
    if (is(CharKind::other, start)) {
      std::size_t end = run(CharKind::other, start);
      while (is_line_end(end)) ++end;
      return end;
    }
    std::size_t behind_line_end = at;
    for (std::size_t end = at; is(CharKind::space, end); end += bytes_) {
      if (is_line_end(end)) behind_line_end = end + 1;
    }
    return behind_line_end > at ? behind_line_end : spaces(at);
  }

 private:
  char letter(std::size_t at, bool any_case) const {
    const char c = text_[at];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  }

  std::string_view text_;
  unsigned bytes_ = 1;
  bool saw_the_end_ = false;
};

}  // namespace

std::string_view regex_of(SplitPattern pattern) {
  return regexes[static_cast<std::size_t>(pattern)];
}

std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t at, bool open) {
  Matcher matcher(text);
  const std::size_t end = pattern == SplitPattern::gpt2 ? matcher.gpt2(at) : matcher.llama3(at);
  return open && matcher.saw_the_end() ? 0 : end;
}

}  // namespace kolo::models
