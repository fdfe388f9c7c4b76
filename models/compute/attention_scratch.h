#pragma once

#include <cstdint>

/// Extents of the blocks that attention works in, and of the memory for them.
namespace kolo::models::scratch {

inline constexpr std::int64_t row_block = 32;                 ///< rows of scores at a time
inline constexpr std::int64_t key_block = 256;                ///< keys at a time: 32 KiB of scores
inline constexpr std::int64_t score_stride = key_block + 16;  ///< floats: rows do not fall onto the same cache sets
inline constexpr std::int64_t panel_keys = 64;                ///< columns of a panel of transposed keys
inline constexpr std::int64_t score_floats = row_block * score_stride;

/// Keys or values of one head, transposed.
constexpr std::int64_t panel_floats(std::int64_t positions, std::int64_t width) {
  return (positions + panel_keys - 1) / panel_keys * panel_keys * width;
}

}  // namespace kolo::models::scratch
