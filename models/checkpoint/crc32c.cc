#include "models/checkpoint/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace kolo::models {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are taken at a time, the first as the lowest");

constexpr std::uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41, reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// Table k tells what a byte comes to that k bytes follow (Kounavis & Berry 2005, "slicing by 8").
constexpr Tables make_tables() {
  Tables tables{};
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

constexpr Tables tables = make_tables();

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data(), 8);
    eight ^= crc;
    crc = 0;
    for (unsigned k = 0; k < 8; ++k) crc ^= tables[7 - k][(eight >> (8 * k)) & 0xff];
  }
  for (const char byte : bytes) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

}  // namespace kolo::models
