#include "models/data/token_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

namespace kolo::models {
namespace {

std::uint32_t number_at(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + at, width);
  return number;
}

/// A layout by a header, which says how many tokens follow it.
TokenLayout checked(const InputFile& file, TokenType type, std::uint64_t header, std::uint64_t count) {
  const std::uint64_t there = file.bytes() - std::min(file.bytes(), header);
  const auto width = static_cast<std::uint64_t>(width_of(type));
  if (count > there / width)
    file.refuse(fmt::format("{} of the {} tokens of its header are missing", count - there / width, count));
  if (count * width < there)
    file.refuse(fmt::format("{} bytes follow the {} tokens of its header", there - count * width, count));
  if (count == 0) file.refuse("it has no tokens");
  return {type, header, static_cast<std::int64_t>(count)};
}

/// 256 numbers of 32 bits, of which the first three are used: magic, version, count (llm.c, dev/data/data_common.py).
std::optional<TokenLayout> llm_c_layout(const InputFile& file, std::string_view start) {
  struct Kind {
    std::uint32_t magic, version;
    TokenType type;
  };
  constexpr std::array kinds{Kind{20240520, 1, TokenType::u16}, Kind{20240801, 7, TokenType::u32}};
  constexpr std::uint64_t header = 1024;
  if (start.size() < 4) return std::nullopt;
  const auto* const kind = std::ranges::find(kinds, number_at(start, 0, 4), &Kind::magic);
  if (kind == kinds.end()) return std::nullopt;
  if (start.size() < 12) file.refuse("it ends within its header");
  if (const auto version = number_at(start, 4, 4); version != kind->version)
    file.refuse(fmt::format("it is of llm.c's version {}, and {} is known", version, kind->version));
  return checked(file, kind->type, header, number_at(start, 8, 4));
}

/// What stands between two texts; nothing if they are not there.
std::optional<std::string_view> between(std::string_view text, std::string_view before, std::string_view behind) {
  const auto at = text.find(before);
  if (at == text.npos) return std::nullopt;
  text.remove_prefix(at + before.size());
  const auto end = text.find(behind);
  if (end == text.npos) return std::nullopt;
  return text.substr(0, end);
}

/// A magic, a version, the length of what follows, and a literal of Python: {'descr': '<u2', 'fortran_order': False,
/// 'shape': (1000,), } (numpy.lib.format).
std::optional<TokenLayout> npy_layout(const InputFile& file, std::string_view start) {
  constexpr std::string_view magic = "\x93NUMPY";
  constexpr std::array<std::pair<std::string_view, TokenType>, 5> types{{{"<u2", TokenType::u16},
                                                                         {"<u4", TokenType::u32},
                                                                         {"<i4", TokenType::u32},
                                                                         {"<u8", TokenType::u64},
                                                                         {"<i8", TokenType::u64}}};
  if (!start.starts_with(magic)) return std::nullopt;
  const std::size_t width = start.size() > 6 && start[6] == 1 ? 2 : 4, from = 8 + width;
  const std::size_t length = start.size() < from ? start.size() : number_at(start, 8, width);
  if (start.size() < from + length) file.refuse("it ends within its header, or that is no header of .npy");
  const std::string_view header = start.substr(from, length);
  const auto descr = between(header, "'descr': '", "'"), shape = between(header, "'shape': (", ")");
  if (!descr || !shape) file.refuse("its header is not as NumPy writes it");
  const auto* const type = std::ranges::find(types, *descr, &std::pair<std::string_view, TokenType>::first);
  if (type == types.end()) file.refuse(fmt::format("its dtype is {}, and no u2, u4, u8, i4 or i8", in_quotes(*descr)));
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(shape->data(), shape->data() + shape->size(), count);
  if (error != std::errc() || std::string_view(end, shape->data() + shape->size()) != ",")
    file.refuse(fmt::format("its shape is ({}), and not of one dimension", *shape));
  return checked(file, type->second, from + length, count);
}

std::optional<TokenLayout> layout_by_header(const InputFile& file, std::string_view start) {
  const auto layout = llm_c_layout(file, start);
  return layout ? layout : npy_layout(file, start);
}

std::string start_of(const InputFile& file) {
  std::string start(std::min<std::uint64_t>(file.bytes(), 4096), '\0');
  file.read(0, std::as_writable_bytes(std::span(start)));
  return start;
}

constexpr std::string_view no_text = "it is no text, and has no header";

bool is_text(std::string_view start) {
  return start.find('\0') == start.npos;
}

}  // namespace

TokenLayout token_layout(const InputFile& file, std::optional<TokenType> type) {
  const std::string start = start_of(file);
  const auto layout = layout_by_header(file, start);
  if (layout) {
    if (type && *type != layout->type)
      file.refuse(fmt::format("its header says {}, and --tokens {}", to_string(layout->type), to_string(*type)));
    return *layout;
  }
  if (!type && !is_text(start)) file.refuse(fmt::format("{}: say with --tokens what its tokens are", no_text));
  const TokenType said = type.value_or(TokenType::bytes);
  const auto width = static_cast<std::uint64_t>(width_of(said));
  if (file.bytes() % width != 0)
    file.refuse(fmt::format("{} bytes are not a whole number of {} tokens", file.bytes(), to_string(said)));
  return {said, 0, static_cast<std::int64_t>(file.bytes() / width)};
}

void check_text(const InputFile& file) {
  const std::string start = start_of(file);
  if (const auto layout = layout_by_header(file, start))
    file.refuse(fmt::format("it is no text: its header says {}", to_string(layout->type)));
  if (!is_text(start)) file.refuse(no_text);
}

}  // namespace kolo::models
