#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kolo::models {
namespace crc32c_tables {

/// Table k: the contribution of a byte that is followed by k others (Kounavis & Berry 2005, "slicing by 8").
constexpr std::array<std::array<std::uint32_t, 256>, 8> make_tables() {
  constexpr std::uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41, reflected
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

inline constexpr auto tables = make_tables();

}  // namespace crc32c_tables

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of bytes that follow those whose CRC is `before`.
inline std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0) {
  static_assert(std::endian::native == std::endian::little, "eight bytes are taken at a time, the first as the lowest");
  std::uint32_t crc = ~before;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data(), 8);
    eight ^= crc;
    crc = 0;
    for (unsigned k = 0; k < 8; ++k) crc ^= crc32c_tables::tables[7 - k][(eight >> (8 * k)) & 0xff];
  }
  for (const char byte : bytes)
    crc = (crc >> 8) ^ crc32c_tables::tables[0][(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

/// Size and CRC-32C of bytes that come piece by piece: of a file.
struct Seal {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;

  void add(std::string_view more) {
    bytes += more.size();
    crc = crc32c(more, crc);
  }
  friend bool operator==(const Seal&, const Seal&) = default;
};

}  // namespace kolo::models
