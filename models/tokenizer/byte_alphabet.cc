#include "models/tokenizer/byte_alphabet.h"

#include "models/tokenizer/utf8.h"

namespace kolo::models {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char32_t, 256> characters_of_bytes = [] {
  std::array<char32_t, 256> all{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) all[byte] = stands_for_itself(byte) ? byte : next++;
  return all;
}();

constexpr unsigned last_character = 0x143;
constexpr std::array<int, last_character + 1> bytes_of_characters = [] {
  std::array<int, last_character + 1> all{};
  for (int& byte : all) byte = -1;
  for (int byte = 0; byte < 256; ++byte) all[characters_of_bytes[static_cast<unsigned>(byte)]] = byte;
  return all;
}();

}  // namespace

std::array<char32_t, 256> byte_characters() {
  return characters_of_bytes;
}

std::string to_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(characters_of_bytes[static_cast<unsigned char>(byte)], text);
  return text;
}

std::optional<std::string> to_bytes(std::string_view characters) {
  std::string bytes;
  for (std::size_t at = 0; at < characters.size();) {
    const Utf8Char next = utf8_at(characters, at);
    if (next.value > last_character || bytes_of_characters[next.value] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_of_characters[next.value]);
    at += next.bytes;
  }
  return bytes;
}

}  // namespace kolo::models
