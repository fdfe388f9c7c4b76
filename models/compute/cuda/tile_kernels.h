#pragma once

#include "models/compute/cuda/team.h"

// Products in tiles of 64 × 64 by 256 threads: thread t has the 16 elements (t / 16 + 16·i, t % 16 + 16·j) of a tile,
// so that what the threads of a warp read of shared memory lies side by side or is the same.

namespace kolo::models::cuda {

inline constexpr int tile = 64, tile_side = 16, tile_threads = tile_side * tile_side, of_thread = tile / tile_side;
inline constexpr int tile_depth = 16;  ///< terms at a time
inline constexpr int tile_stride = tile + 1;
inline constexpr Index operand_floats = Index{tile_depth} * tile_stride;
inline constexpr Index tile_floats = 2 * operand_floats;  ///< of shared memory

/// Σ a(row, k) · b(k, column) over k from `first` to `end`, of the rows and columns of a tile, to store(row, column,
/// sum). The terms of a sum are added in their order.
template <class Team, class A, class B, class Store>
constexpr void multiply_tile(const Team& team, Index first, Index end, A a, B b, Store store) {
  float* const left = team.shared();
  float* const right = left + operand_floats;
  typename Team::template Own<float, of_thread * of_thread> own;
  team.run([&](int thread) {
    for (int i = 0; i < of_thread * of_thread; ++i) own.of(thread)[i] = 0;
  });
  for (Index begin = first; begin < end; begin += tile_depth) {
    team.run([&](int thread) {
      for (int i = thread; i < tile * tile_depth; i += tile_threads) {
        const Index k = begin + i % tile_depth;
        left[i % tile_depth * tile_stride + i / tile_depth] = k < end ? a(Index{i / tile_depth}, k) : 0.0f;
      }
      for (int i = thread; i < tile * tile_depth; i += tile_threads) {
        const Index k = begin + i / tile;
        right[i / tile * tile_stride + i % tile] = k < end ? b(k, Index{i % tile}) : 0.0f;
      }
    });
    team.run([&](int thread) {
      auto& sums = own.of(thread);
      for (int k = 0; k < tile_depth; ++k) {
        for (int i = 0; i < of_thread; ++i) {
          const float x = left[k * tile_stride + thread / tile_side + i * tile_side];
          for (int j = 0; j < of_thread; ++j) {
            const float y = right[k * tile_stride + thread % tile_side + j * tile_side];
            sums[i * of_thread + j] = ::fmaf(x, y, sums[i * of_thread + j]);
          }
        }
      }
    });
  }
  team.run([&](int thread) {
    for (int i = 0; i < of_thread; ++i) {
      for (int j = 0; j < of_thread; ++j) {
        store(Index{thread / tile_side + i * tile_side}, Index{thread % tile_side + j * tile_side},
              own.of(thread)[i * of_thread + j]);
      }
    }
  });
}

/// Kernels whose blocks have a tile each of a matrix [m, n]; or of several.
struct Tiles {
  static constexpr int threads = tile_threads;
  Index m = 0, n = 0;

  constexpr Index across() const { return divided_up(n, tile); }
  constexpr Index tiles() const { return divided_up(m, tile) * across(); }
  constexpr Index blocks() const { return tiles(); }
  constexpr Index shared_floats() const { return tile_floats; }
  constexpr Index first_row(Index block) const { return block % tiles() / across() * tile; }
  constexpr Index first_column(Index block) const { return block % tiles() % across() * tile; }
};

/// What Compute::product() asks for, where cuBLASLt has no algorithm or is not there.
struct PlainProduct : Tiles {
  Index k = 0;
  bool transpose_a = false, transpose_b = false, add = false, relu = false;
  bool tf32 = false;  ///< a library may round operands of f32 so
  Items a, b;
  Items bias;  ///< of c's dtype; null: none
  Items c;
  float* sums = nullptr;  ///< by a library alone: overwritten

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index row = first_row(block), column = first_column(block);
    multiply_tile(
        team, 0, k,
        [&](Index i, Index at) {
          const Index r = row + i;
          return r < m ? a.load(transpose_a ? at * m + r : r * k + at) : 0.0f;
        },
        [&](Index at, Index j) {
          const Index q = column + j;
          return q < n ? b.load(transpose_b ? q * k + at : at * n + q) : 0.0f;
        },
        [&](Index i, Index j, float sum) {
          if (row + i >= m || column + j >= n) return;
          const Index to = (row + i) * n + column + j;
          if (bias.data != nullptr) sum += bias.load(column + j);
          if (add) sum += c.load(to);
          c.store(to, relu && sum < 0 ? 0.0f : sum);
        });
  }
};

}  // namespace kolo::models::cuda
