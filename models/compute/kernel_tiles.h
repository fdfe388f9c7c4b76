#pragma once

// Products of small matrices whose operands are in cache; see kernel_vectors.h for how this is compiled.

#include "models/compute/kernel_vectors.h"

namespace kolo::models {
namespace {

/// C (+)= A·B on tiles: element (row, i) of A is a[row·a_row + i·a_step]; rows of B and C are dense, `columns` is a
/// multiple of 16.
struct Tile {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;  ///< terms of each element of C
  std::int64_t a_row = 0;
  std::int64_t a_step = 0;
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;
};

/// A block of `rows` × `vectors` sums that stay in registers.
template <int rows, int vectors, bool add>
inline void tile_block(const Tile& tile, const float* a, const float* b, float* c) {
  Floats sums[rows][vectors];
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < vectors; ++v) {
      sums[row][v] = add ? load(c + row * tile.c_stride + v * lanes, Full{}) : Floats{};
    }
  }
  for (std::int64_t i = 0; i < tile.depth; ++i) {
    Floats right[vectors];
    for (int v = 0; v < vectors; ++v) right[v] = load(b + i * tile.b_stride + v * lanes, Full{});
    for (int row = 0; row < rows; ++row) {
      const float left = a[row * tile.a_row + i * tile.a_step];
      for (int v = 0; v < vectors; ++v) sums[row][v] += left * right[v];
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < vectors; ++v) store(c + row * tile.c_stride + v * lanes, sums[row][v], Full{});
  }
}

/// Sums use half of the vector registers. Of 16 registers, four rows of two vectors leave more for operands than two of
/// four: attention takes a fifth less time.
inline constexpr int block_sums = vector_bytes == 64 ? 16 : 8;
inline constexpr int block_vectors = vector_bytes == 64 ? 4 : 2;

template <int vectors, bool add>
inline void tile_rows(const Tile& tile, const float* a, const float* b, float* c) {
  constexpr int rows = block_sums / vectors;
  std::int64_t row = 0;
  for (; row + rows <= tile.rows; row += rows) {
    tile_block<rows, vectors, add>(tile, a + row * tile.a_row, b, c + row * tile.c_stride);
  }
  for (; row < tile.rows; ++row) tile_block<1, vectors, add>(tile, a + row * tile.a_row, b, c + row * tile.c_stride);
}

template <bool add>
inline void multiply_tile(const Tile& tile, const float* a, const float* b, float* c) {
  constexpr std::int64_t wide = block_vectors * lanes;
  std::int64_t column = 0;
  for (; column + wide <= tile.columns; column += wide) {
    tile_rows<block_vectors, add>(tile, a, b + column, c + column);
  }
  for (; column + 2 * lanes <= tile.columns; column += 2 * lanes) tile_rows<2, add>(tile, a, b + column, c + column);
  for (; column < tile.columns; column += lanes) tile_rows<1, add>(tile, a, b + column, c + column);
}

}  // namespace
}  // namespace kolo::models
