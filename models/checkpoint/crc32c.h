#pragma once

#include <cstdint>
#include <string_view>

namespace kolo::models {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of bytes that follow those whose CRC is `before`.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

}  // namespace kolo::models
