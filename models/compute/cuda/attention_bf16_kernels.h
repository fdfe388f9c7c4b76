#pragma once

#include "models/compute/cuda/attention_kernels.h"

// Attention of bf16 on tensor cores: as attention_kernels.h, but that a warp keeps the scores and sums of its rows in
// registers (Dao 2023, arXiv:2307.08691, section 3.3). Tiles of the other side come into shared memory while those
// before are multiplied. Weights and gradients of scores are rounded when they are multiplied.

namespace kolo::models::cuda {

/// e^x over the power of two of a base.
template <class Team>
struct ExpOver {
  constexpr float operator()(float x, float base) const { return Team::exp2(::fmaf(x, log2_of_e, -base)); }
};

struct alignas(4) HalfPair {
  Half first, second;
};
/// Two neighbours, rounded, to an even place.
template <class Team>
constexpr void store_pair(const Team& team, Half* to, float first, float second) {
  *static_cast<HalfPair*>(static_cast<void*>(to)) = __builtin_bit_cast(HalfPair, team.halves(first, second));
}

/// q, k, v [sequences, heads or kv_heads, positions, width], each row 16 bytes aligned. A warp has `sixteens` times 16
/// rows of its side.
template <int columns, int warps, int sixteens>
struct Bf16Attention {
  static constexpr int threads = 32 * warps;
  static constexpr int warp_rows = 16 * sixteens, block_rows = warp_rows * warps;
  static constexpr int stride = tile_side * columns + 8;  ///< of a row in shared memory: no two of eight in a bank
  static constexpr Index tile_halves = Index{tile} * stride;

  Index sequences = 0, positions = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  const Half *q = nullptr, *k = nullptr, *v = nullptr;

  /// The first of a warp's rows in its block.
  static constexpr Index row_of(int warp) { return Index{warp_rows} * warp; }
  constexpr Index block_tiles() const { return divided_up(positions, block_rows); }
  constexpr Index tiles() const { return divided_up(positions, tile); }
  /// The first row of one of all heads.
  constexpr Index first_row(Index head) const { return head * positions; }
  /// The keys and values of one of all heads.
  constexpr Index kv_of(Index head) const { return head / heads * kv_heads + head % heads / (heads / kv_heads); }

  template <class Team>
  static constexpr Half* halves(const Team& team) {
    return static_cast<Half*>(static_cast<void*>(team.shared()));
  }
  /// Begins to fetch `count` rows of one head from row `first` on.
  template <int count, class Team>
  constexpr void fetch(const Team& team, const Half* of_head, Index first, Half* to) const {
    constexpr int pieces = 2 * columns, at_once = threads / pieces;  // of 16 bytes, and rows
    team.start([&](int thread) {
      const int row = thread / pieces, at = thread % pieces * 8;
      const Half* const from = of_head + (first + row) * width + at;
      Half* const place = to + (row * stride + at);
      const int left = at < width ? static_cast<int>(least(count, positions - first - row)) : 0;
      for (int i = 0; i < count; i += at_once) {
        const bool there = i < left;
        team.fetch(place + Index{i} * stride, there ? from + i * width : of_head, there);
      }
    });
  }
  /// Begins to fetch a tile of the keys and values that begin at `of_kv` into one of two buffers of both.
  template <class Team>
  constexpr void fetch_keys(const Team& team, Index of_kv, Index key_tile, Half* keys) const {
    Half* const to = keys + key_tile % 2 * tile_halves;
    fetch<tile>(team, k + of_kv, key_tile * tile, to);
    fetch<tile>(team, v + of_kv, key_tile * tile, to + 2 * tile_halves);
    team.end_fetch();
  }
  /// Passes over the tiles of the keys that rows of a block from `first` on see, of which one is there.
  /// pass.operator()<masked>(tile): only where it is masked are there keys that one of the rows does not see.
  template <class Team, class Pass>
  constexpr void over_keys(const Team& team, Index first, Index of_kv, Half* keys, Pass pass) const {
    const Index all = least(tiles(), divided_up(first + block_rows, tile)), unmasked = first / tile;
    for (Index at = 0; at < all; ++at) {
      team.template await_fetched<0>();
      if (at + 1 < all) fetch_keys(team, of_kv, at + 1, keys);
      if (at < unmasked)
        pass.template operator()<false>(at);
      else
        pass.template operator()<true>(at);
    }
  }
};

/// As Compute::attend(), of bf16.
template <int columns>
struct AttendBf16 : Bf16Attention<columns, 4, 1> {
  using Base = Bf16Attention<columns, 4, 1>;
  static constexpr int together = columns <= 4 ? 4 : 2;  ///< blocks on a multiprocessor
  Half* out = nullptr;
  float* log_sums = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->block_tiles(); }
  constexpr Index shared_floats() const { return (Index{Base::block_rows} * Base::stride + 4 * Base::tile_halves) / 2; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    using Warp = typename Team::template Warp<Base::warp_rows / 16>;
    const Index all = this->sequences * this->heads;
    const Index head = block % all, at = this->block_tiles() - 1 - block / all;  // those with most keys come first
    const Index of_kv = this->first_row(this->kv_of(head)) * this->width;
    Half* const queries = Base::halves(team);
    Half* const keys = queries + Base::block_rows * Base::stride;  // two tiles each
    Half* const values = keys + 2 * Base::tile_halves;
    typename Warp::template Left<columns> q;
    typename Warp::template Sums<2 * columns> sums;
    typename Warp::RowNumbers largest, total;

    const Index first = at * Base::block_rows;
    this->template fetch<Base::block_rows>(team, this->q + this->first_row(head) * this->width, first, queries);
    this->fetch_keys(team, of_kv, 0, keys);
    team.template await_fetched<0>();
    team.warps([&](int warp) {
      q.load(warp, queries + Base::row_of(warp) * Base::stride, Base::stride);
      sums.fill(warp, 0);
      total.fill(warp, 0);
      largest.fill(warp, -HUGE_VALF);
    });
    const auto pass = [&]<bool masked>(Index key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves;
      team.warps([&](int warp) {
        const Index row = first + Base::row_of(warp), key = key_tile * tile;
        if (masked && key >= row + Base::warp_rows) return;
        typename Warp::template Sums<tile / 8> scores;
        scores.fill(warp, 0);
        scores.template multiply<false>(warp, q, keys + buffer, Base::stride);
        if constexpr (masked) {
          const int ahead = static_cast<int>(key - row);
          scores.change(warp, [&](float x, int i, int j) { return ahead + j <= i ? x : -HUGE_VALF; });
        }
        typename Warp::RowNumbers now = largest, base, part;
        scores.gather(warp, now, Largest{});
        base.change(warp, now,
                    [](float, float x) { return x == -HUGE_VALF ? 0.0f : x * log2_of_e; });  // all overflowed
        largest.change(warp, base, ExpOver<Team>{});  // now that by which the sums shrink
        scores.change_rows(warp, base, ExpOver<Team>{});
        part.fill(warp, 0);
        scores.gather(warp, part, Sum{});
        total.change(warp, largest, [](float x, float shrink) { return x * shrink; });
        total.change(warp, part, Sum{});
        sums.change_rows(warp, largest, [](float x, float shrink) { return x * shrink; });
        typename Warp::template Left<tile / 16> weights;
        weights.round(warp, scores);
        sums.template multiply<true>(warp, weights, values + buffer, Base::stride);
        largest = now;
      });
    };
    this->over_keys(team, first, of_kv, keys, pass);
    team.warps([&](int warp) {
      const Index row = first + Base::row_of(warp);
      sums.change_rows(warp, total, [](float x, float of_row) { return x / of_row; });
      sums.read(warp, [&](int i, int column, float x, float next) {
        if (row + i >= this->positions || column >= this->head_dim) return;
        const Index of_row = (head / this->heads * this->positions + row + i) * this->heads + head % this->heads;
        store_pair(team, out + of_row * this->head_dim + column, x, next);
      });
      largest.change(warp, total, [](float x, float of_row) { return x + ::logf(of_row); });
      largest.read(warp, [&](int i, float x) {
        if (row + i < this->positions) log_sums[this->first_row(head) + row + i] = x;
      });
    });
  }
};

}  // namespace kolo::models::cuda
